"""RPCs of the model repository, and the parameters of RepositoryModelLoad.

    config                     JSON of a ModelConfig
    file:<version>/<name>      the model file of one version

Of the configuration, batch sizes and the versions that serve are used. Each device has one instance
anyway. Fields that ask for any other behaviour are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import json_format

from braid.core.errors import InvalidRequest, NotOffered
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.rpc.status import Context, answering
from braid.server.servicers.oip.models import BACKEND, PLATFORM
from braid.server.servicers.oip.wire import config as wire
from braid.server.servicers.oip.wire import messages
from braid.server.store.records import RegistrationOptions
from braid.server.store.serving_config import VersionPolicy

_FILE = re.compile(r"file:([1-9][0-9]{0,8})/([^/\x00]{1,255})")
_PLATFORMS = ("", PLATFORM, "onnxruntime_onnx")
_BACKENDS = ("", BACKEND, "onnxruntime")

# Fields that say nothing about how the model behaves here, or that are read below.
_KNOWN_FIELDS = frozenset(
    {
        "name",
        "platform",
        "backend",
        "runtime",
        "max_batch_size",
        "input",
        "output",
        "dynamic_batching",
        "default_model_filename",
        "metric_tags",
        "parameters",
        "optimization",
        "instance_group",
        "version_policy",
    }
)

_KNOWN_OF_INSTANCES = frozenset({"name", "kind", "count", "gpus"})


class RepositoryMethods:
    """RPCs that list, load and unload models."""

    def __init__(
        self, loader: ModelLoader, policies: VersionPolicies, device_names: Collection[str]
    ) -> None:
        self._loader = loader
        self._policies = policies
        self._device_names = device_names

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """List all versions, or those that answer."""
        async with answering(context):
            _one_repository(request.repository_name)
            return messages.RepositoryIndexResponse(
                models=[
                    messages.RepositoryIndexResponse.ModelIndex(
                        name=each.name,
                        version=str(each.version),
                        state=each.state,
                        reason=each.reason,
                    )
                    for each in await self._loader.index(request.ready)
                ]
            )

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Load a model, from files in the request if there are any."""
        async with answering(context):
            _one_repository(request.repository_name)
            name = request.model_name
            wanted = load_request(name, request.parameters, self._device_names)
            await self._loader.load(name, wanted.files, wanted.options)
            if wanted.versions is not None:
                config = replace(self._policies.config(name), versions=wanted.versions)
                await self._policies.configure(name, config)
            return messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Unload a model; no model depends on another one."""
        async with answering(context):
            _one_repository(request.repository_name)
            for name in request.parameters:
                if name != "unload_dependents":
                    raise InvalidRequest(f"parameter {name[:100]!r} is not known")
            await self._loader.unload(request.model_name)
            return messages.RepositoryModelUnloadResponse()


def _one_repository(name: str) -> None:
    if name:
        raise NotOffered("there is one repository here, without a name; leave it out")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Model files and configuration that a load brings."""

    files: Mapping[int, bytes]  # version -> model file
    options: RegistrationOptions | None  # None: no configuration was given
    versions: VersionPolicy | None = None  # None: as before


def load_request(
    model: str, parameters: Mapping[str, Any], devices: Collection[str]
) -> LoadRequest:
    """Read the parameters of a load.

    Args:
        model: the name in the request.
        parameters: of the request.
        devices: names of this server's devices.

    Raises:
        InvalidRequest: one is unknown, of the wrong type, or asks for what is not done here.
    """
    files: dict[int, bytes] = {}
    options = versions = None
    for name in parameters:
        which = parameters[name].WhichOneof("parameter_choice")
        if name == "config":
            if which != "string_param":
                raise InvalidRequest("parameter 'config' must be a string, the JSON of a config")
            config = _parsed(model, parameters[name].string_param)
            _check_instances(config.instance_group, devices)
            options, versions = _options(config), _versions(config)
            continue
        found = _FILE.fullmatch(name)
        if found is None or which != "bytes_param":
            raise InvalidRequest(
                f"parameter {name[:100]!r} is not known; there are 'config' (a string) and "
                "'file:<version>/<name>' (bytes), e.g. 'file:1/model.onnx'"
            )
        if int(found[1]) in files:
            raise InvalidRequest(f"version {found[1]} has two files; send one model file each")
        files[int(found[1])] = parameters[name].bytes_param
    return LoadRequest(files, options, versions)


def _parsed(model: str, text: str) -> Any:
    """Parse a ModelConfig from JSON.

    Raises:
        InvalidRequest: it does not parse, is of another model, or asks for what is not done.
    """
    parsed = wire.ModelConfig()
    try:
        json_format.Parse(text, parsed)
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"the config is not the JSON of a ModelConfig: {error}") from None
    unknown = [f.name for f, _ in parsed.ListFields() if f.name not in _KNOWN_FIELDS]
    if unknown:
        raise InvalidRequest(f"the config asks for {', '.join(unknown)}: not offered here")
    if parsed.name not in ("", model):
        raise InvalidRequest(f"the config is of model {parsed.name!r}, the request of {model!r}")
    if parsed.platform not in _PLATFORMS or parsed.backend not in _BACKENDS:
        raise InvalidRequest(
            f"platform {parsed.platform!r} with backend {parsed.backend!r} is not served here; "
            f"leave both out, or say {PLATFORM!r} and {BACKEND!r}"
        )
    return parsed


def _options(config: Any) -> RegistrationOptions:
    """Return the batch sizes to schedule: the preferred batch sizes, the largest, and 1."""
    sizes = {1, max(1, config.max_batch_size), *config.dynamic_batching.preferred_batch_size}
    return RegistrationOptions(batch_sizes=tuple(sizes))


def _versions(config: Any) -> VersionPolicy | None:
    """Return which versions are to serve; None if the configuration leaves that open.

    Raises:
        InvalidRequest: no versions, or too many, are named.
    """
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            return VersionPolicy(latest=policy.latest.num_versions or 1)
        case "specific":
            if not policy.specific.versions:
                raise InvalidRequest("version_policy 'specific' names no version")
            return VersionPolicy(specific=tuple(policy.specific.versions))
        case "all":
            return VersionPolicy()
        case _:
            return None


def _check_instances(groups: Sequence[Any], devices: Collection[str]) -> None:
    """Refuse instances other than the one that each device has.

    Raises:
        InvalidRequest: naming the field.
    """
    kinds = {"KIND_GPU" if name.startswith("cuda") else "KIND_CPU" for name in devices}
    for group in groups:
        if group.count > 1 or len(groups) > 1:
            raise InvalidRequest(
                "instance_group: a model has one instance on each device here, and requests to it "
                "are batched; give one group of count 1, or leave it out"
            )
        kind = wire.ModelInstanceGroup.Kind.Name(group.kind)
        if kind not in ("KIND_AUTO", *kinds) or any(f"cuda:{n}" not in devices for n in group.gpus):
            where = f"{kind} on gpus {list(group.gpus)}" if group.gpus else kind
            raise InvalidRequest(
                f"instance_group: {where} is not what this server has, which is "
                f"{', '.join(sorted(devices))}; leave it out, or say KIND_AUTO"
            )
        unknown = {field.name for field, _ in group.ListFields()} - _KNOWN_OF_INSTANCES
        if unknown:
            raise InvalidRequest(
                f"instance_group: {', '.join(sorted(unknown))} is not offered here"
            )
