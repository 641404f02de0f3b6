"""Reads Triton's ModelConfig; fields that are not offered are refused by name.

    config.pbtxt (protobuf text), or JSON in a RepositoryModelLoad ──> Configuration

Fields that say nothing about how a model behaves here are passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as wire

from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.scheduler.options import PlannerSettings
from braid.server.inference.requests import DEFAULT_PRIORITY, PRIORITY_LEVELS
from braid.server.repository.declared import DeclaredTensor, data_type_name
from braid.server.store.serving_config import ServingConfig, VersionPolicy

PLATFORM = "onnx_braid"
BACKEND = "braid"
MODEL_FILE = "model.onnx"

_PLATFORMS = ("", PLATFORM, "onnxruntime_onnx")
_BACKENDS = ("", BACKEND, "onnxruntime")

_OFFERED: Mapping[str, frozenset[str]] = {
    message: frozenset(fields.split())
    for message, fields in {
        "ModelConfig": "name platform backend runtime max_batch_size input output dynamic_batching "
        "default_model_filename metric_tags parameters optimization instance_group version_policy",
        "ModelDynamicBatching": "preferred_batch_size max_queue_delay_microseconds "
        "priority_levels default_priority_level",
        "ModelInstanceGroup": "name kind count gpus",
        "ModelInput": "name data_type format dims",
        "ModelOutput": "name data_type dims",
    }.items()
}
"""Fields of each message that are read here, or that change nothing."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Wishes of a ModelConfig."""

    batch_sizes: tuple[int, ...] = ()  # to schedule; none: 1, and what pays
    max_batch_size: int | None = None  # None: nothing is declared of the batch
    versions: VersionPolicy | None = None  # None: left open
    max_wait_ms: float | None = None  # for more rows; None: left open
    filename: str = MODEL_FILE
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    is_given: bool = False  # there is a configuration; else these are the defaults

    @property
    def options(self) -> ModelOptions:
        return ModelOptions(self.batch_sizes, PlannerSettings.for_serving())

    def serving(self, before: ServingConfig) -> ServingConfig:
        """Return how the model is to serve, as ``before`` in what is left open."""
        versions = before.versions if self.versions is None else self.versions
        batching = before.batching
        if self.max_wait_ms is not None:
            batching = replace(batching, max_wait_ms=self.max_wait_ms)
        return replace(before, versions=versions, batching=batching)


def configuration_from_text(text: str, model: str, devices: Collection[str]) -> Configuration:
    """Read a config.pbtxt; arguments and errors are those of ``configuration_from_json``."""
    try:
        parsed = text_format.Parse(text, wire.ModelConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"line {_one_line(error)}") from None
    return _checked(parsed, model, devices)


def configuration_from_json(text: str, model: str, devices: Collection[str]) -> Configuration:
    """Read the JSON of a ModelConfig.

    Args:
        text: the configuration.
        model: name of the model that it is for.
        devices: names of this server's devices.

    Raises:
        InvalidRequest: it does not parse, is of another model, or asks for what is not done.
    """
    try:
        parsed = json_format.Parse(text, wire.ModelConfig())
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"the config is not the JSON of a ModelConfig: {error}") from None
    return _checked(parsed, model, devices)


def _checked(config: Any, model: str, devices: Collection[str]) -> Configuration:
    _only_offered(config, "the config")
    if config.name not in ("", model):
        raise InvalidRequest(f"the config is of model {config.name!r}, not of {model!r}")
    if config.platform not in _PLATFORMS or config.backend not in _BACKENDS:
        raise InvalidRequest(
            f"platform {config.platform!r} with backend {config.backend!r} is not served here; "
            f"leave both out, or say {PLATFORM!r} and {BACKEND!r}"
        )
    if config.max_batch_size < 0:
        raise InvalidRequest(f"max_batch_size is {config.max_batch_size}; it is 0 or more")
    _check_instances(config.instance_group, devices)
    batching = config.dynamic_batching
    _only_offered(batching, "dynamic_batching")
    if batching.priority_levels not in (0, PRIORITY_LEVELS):
        raise InvalidRequest(f"dynamic_batching.priority_levels: there are {PRIORITY_LEVELS} here")
    if batching.default_priority_level not in (0, DEFAULT_PRIORITY):
        raise InvalidRequest(
            f"dynamic_batching.default_priority_level: it is {DEFAULT_PRIORITY} here"
        )
    return Configuration(
        batch_sizes=_batch_sizes(config),
        max_batch_size=config.max_batch_size,
        versions=_versions(config.version_policy),
        max_wait_ms=batching.max_queue_delay_microseconds / 1000 or None,
        filename=_filename(config.default_model_filename),
        inputs=_declared(config.input, "input"),
        outputs=_declared(config.output, "output"),
        is_given=True,
    )


def _only_offered(message: Message, where: str) -> None:
    """Refuse the fields that are set and not offered.

    Raises:
        InvalidRequest: naming them.
    """
    offered = _OFFERED[message.DESCRIPTOR.name]
    unknown = [field.name for field, _ in message.ListFields() if field.name not in offered]
    if unknown:
        raise InvalidRequest(f"{where} asks for {', '.join(unknown)}: not offered here")


def _batch_sizes(config: Any) -> tuple[int, ...]:
    """Batch sizes to schedule: the preferred batch sizes, the largest, and 1."""
    sizes = {1, max(1, config.max_batch_size), *config.dynamic_batching.preferred_batch_size}
    return ModelOptions(tuple(sizes)).batch_sizes


def _versions(policy: Any) -> VersionPolicy | None:
    """Return which versions are to serve; None if the configuration leaves that open.

    Raises:
        InvalidRequest: no versions, or too many, are named.
    """
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


def _filename(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise InvalidRequest(f"default_model_filename {name[:100]!r} is not a file's name")
    return name or MODEL_FILE


def _declared(tensors: Sequence[Any], kind: str) -> tuple[DeclaredTensor, ...]:
    """Return the inputs or outputs that a configuration declares.

    Raises:
        InvalidRequest: one asks for what is not offered.
    """
    for tensor in tensors:
        _only_offered(tensor, f"{kind} {tensor.name!r}")
    return tuple(
        DeclaredTensor(tensor.name, data_type_name(tensor.data_type), tuple(tensor.dims))
        for tensor in tensors
    )


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
        _only_offered(group, "instance_group")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
