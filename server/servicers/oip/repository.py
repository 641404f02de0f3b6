"""RPCs of the model repository, and the parameters of RepositoryModelLoad.

    config                     JSON of a ModelConfig
    file:<version>/<name>      the model file of one version
    file:<name>                labels of classes, which the config names

Of the configuration, batch sizes, the versions that serve and the longest wait for more rows are
used. Fields that ask for other answers are refused by name.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest, NotOffered
from braid.server.models.loading import ModelLoader
from braid.server.models.policies import VersionPolicies
from braid.server.repository.configuration import Configuration, configuration_from_json
from braid.server.rpc.status import Context
from braid.server.servicers.oip.wire import messages

log = logging.getLogger("braid.repository")

MAX_CONFIG_CHARS = 1 << 20
"""Longest configuration that is read; those of models have some thousand characters."""

_FILE = re.compile(r"file:([1-9][0-9]{0,8})/([^/\x00]{1,255})")


@dataclass(frozen=True, slots=True)
class RepositoryMethods:
    """RPCs that list, load and unload models."""

    _loader: ModelLoader
    _policies: VersionPolicies
    _device_names: Collection[str]

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        _one_repository(request.repository_name)
        return messages.RepositoryIndexResponse(
            models=[
                messages.RepositoryIndexResponse.ModelIndex(
                    name=entry.name,
                    version=str(entry.version or ""),
                    state=entry.state,
                    reason=entry.reason,
                )
                for entry in await self._loader.index(request.ready)
            ]
        )

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        _one_repository(request.repository_name)
        name = request.model_name
        # A thread: the library that reads configurations takes seconds for large ones.
        files, config = await asyncio.to_thread(
            load_request, name, request.parameters, self._device_names
        )
        options = None if config is None else ModelOptions(config.batch_sizes)  # None: as before
        await self._loader.load(name, files, options)
        if config is not None:
            if config.warning:
                facts = {"model": name, "reason": config.warning}
                log.warning("lines of a configuration are passed over", extra=facts)
            before = self._policies.config(name)
            if (target := config.serving(before)) != before:
                await self._policies.configure(name, target)
        return messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Unload a model; no model depends on another one."""
        _one_repository(request.repository_name)
        for name in request.parameters:
            if name != "unload_dependents":
                raise InvalidRequest(f"parameter {name[:100]!r} is not known")
        await self._loader.unload(request.model_name)
        return messages.RepositoryModelUnloadResponse()


def _one_repository(name: str) -> None:
    if name:
        raise NotOffered("there is one repository here, without a name; leave it out")


def load_request(
    model: str, parameters: Mapping[str, Any], devices: Collection[str]
) -> tuple[dict[int, bytes], Configuration | None]:
    """Read the model files by version, and the configuration; None: none was given.

    Raises InvalidRequest: a parameter is unknown, of a wrong type, or asks for what is not done.
    """
    files: dict[int, bytes] = {}
    config: Configuration | None = None
    labels = set[str]()

    def read_labels(name: str) -> bytes:
        labels.add(key := f"file:{name}")
        if key not in parameters or not parameters[key].bytes_param:
            raise InvalidRequest(f"label_filename {name!r}: send parameter {key!r}, in bytes")
        return bytes(parameters[key].bytes_param)

    for name in sorted(parameters):  # the config first
        field = parameters[name].WhichOneof("parameter_choice")
        if name == "config":
            if field != "string_param":
                raise InvalidRequest("parameter 'config' must be a string, the JSON of a config")
            text = parameters[name].string_param
            if len(text) > MAX_CONFIG_CHARS:
                raise InvalidRequest(
                    f"the config has {len(text)} characters; it may have {MAX_CONFIG_CHARS}"
                )
            config = configuration_from_json(text, model, devices, read_labels)
            continue
        if name in labels:
            continue
        match = _FILE.fullmatch(name)
        if match is None or field != "bytes_param":
            raise InvalidRequest(
                f"parameter {name[:100]!r} is not known; there are 'config' (a string) and "
                "'file:<version>/<name>' (bytes), e.g. 'file:1/model.onnx'"
            )
        if int(match[1]) in files:
            raise InvalidRequest(f"version {match[1]} has two files; send one model file each")
        files[int(match[1])] = parameters[name].bytes_param
    return files, config
