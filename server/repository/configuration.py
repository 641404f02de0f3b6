"""Reads Triton's ModelConfig; fields that ask for other answers are refused by name.

Fields that change no answer (how many instances, on what, in which order) are passed over, and
named in ``Configuration.passed_over``.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2 as wire

from braid.compiler.options import NO_LENGTHS, ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.padding import ZEROS
from braid.scheduler.options import PlannerSettings
from braid.server.store.interface import OPEN, DeclaredTensor, Interface
from braid.server.store.serving_config import ON_DEMAND, Residency, ServingConfig, VersionPolicy

PLATFORM = "onnx_braid"
BACKEND = "braid"
MODEL_FILE = "model.onnx"

_WHOLE = "the config"

_PLATFORMS = ("", PLATFORM, "onnxruntime_onnx")
_BACKENDS = ("", BACKEND, "onnxruntime")

_ADVICE: Mapping[str, str] = {
    "python": "no upload's code is run; export the model that it calls as ONNX, the rest is for "
    "the client",
    "pytorch": "export it as ONNX, or by torch.export.save as .pt2 (see default_model_filename)",
    "tensorflow": "convert it with tf2onnx",
    "tensorrt": "a plan is for one kind of GPU; give the ONNX file that it was built from",
    "openvino": "give the ONNX file that it was made from; OpenVINO runs it where it is faster",
    "ensemble": "join the models by onnx.compose.merge_models, or call one after the other",
}
"""What to do in place of Triton's other backends; platforms begin with their names."""

_OFFERED: Mapping[str, str] = {
    "ModelConfig": "name platform backend max_batch_size input output dynamic_batching "
    "default_model_filename instance_group version_policy",
    "ModelDynamicBatching": "preferred_batch_size max_queue_delay_microseconds",
    "ModelInstanceGroup": "name kind count gpus",
    "ModelInput": "name data_type format dims reshape",
    "ModelOutput": "name data_type dims reshape label_filename",
}
"""Fields of each message that are read here."""

_PASSED_OVER: Mapping[str, str] = {
    "ModelConfig": "runtime metric_tags model_metrics parameters optimization model_warmup "
    "response_cache cc_model_filenames model_transaction_policy",
    "ModelDynamicBatching": "preserve_ordering priority_levels default_priority_level "
    "default_queue_policy priority_queue_policy",
    "ModelInstanceGroup": "rate_limiter host_policy profile secondary_devices",
}
"""Fields of each message that change no answer."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Wishes of a ModelConfig."""

    batch_sizes: tuple[int, ...] = ()  # to schedule; none: 1, and what pays
    pad: Mapping[str, str] = field(default_factory=dict)  # axis -> way
    lengths: str = NO_LENGTHS  # of the padded axis, to schedule
    batchable: bool = False  # rows may share batches whatever the import shows
    max_batch_size: int | None = None  # None: nothing is declared of the batch
    versions: VersionPolicy | None = None  # None: left open
    max_wait_ms: float | None = None  # for more rows; None: left open
    residency: Residency | None = None  # None: left open
    filename: str = MODEL_FILE
    interface: Interface = field(default_factory=Interface)
    is_given: bool = False  # there is a configuration; else these are the defaults
    passed_over: tuple[str, ...] = ()  # what it asks for that changes nothing here

    @property
    def warning(self) -> str:
        if not self.passed_over:
            return ""
        return f"passed over, as it changes no answer: {', '.join(self.passed_over)}"

    @property
    def options(self) -> ModelOptions:
        planner = PlannerSettings.for_serving()
        return ModelOptions(
            self.batch_sizes,
            planner,
            pad=self.pad,
            lengths=self.lengths,
            batchable=self.batchable,
        )

    def serving(self, before: ServingConfig) -> ServingConfig:
        """Return how the model is to serve, as ``before`` in what is left open."""
        versions = before.versions if self.versions is None else self.versions
        batching = before.batching
        if self.max_wait_ms is not None:
            batching = replace(batching, max_wait_ms=self.max_wait_ms)
        residency = before.residency if self.residency is None else self.residency
        shown = self.interface
        return replace(
            before, versions=versions, batching=batching, residency=residency, interface=shown
        )


ReadLabels = Callable[[str], bytes]
"""Returns the content of a file of labels; raises InvalidRequest if there is none."""


def configuration_from_text(
    text: str, model: str, devices: Collection[str], read_labels: ReadLabels
) -> Configuration:
    """Read a config.pbtxt; arguments and errors are those of ``configuration_from_json``."""
    try:
        parsed = text_format.Parse(text, wire.ModelConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"line {' '.join(str(error).split())}") from None
    return _checked(parsed, model, devices, read_labels)


def configuration_from_json(
    text: str, model: str, devices: Collection[str], read_labels: ReadLabels
) -> Configuration:
    """Read the JSON of a ModelConfig. InvalidRequest: malformed, another model's, not offered."""
    try:
        parsed = json_format.Parse(text, wire.ModelConfig())
    except (json_format.ParseError, RecursionError) as error:
        raise InvalidRequest(f"the config is not the JSON of a ModelConfig: {error}") from None
    return _checked(parsed, model, devices, read_labels)


def _checked(
    config: Any, model: str, devices: Collection[str], read_labels: ReadLabels
) -> Configuration:
    _check_backend(config.platform, config.backend)
    passed_over = _passed_over(config, _WHOLE)
    if config.model_transaction_policy.decoupled:
        raise InvalidRequest("the config asks for model_transaction_policy.decoupled: not offered")
    if config.name not in ("", model):
        raise InvalidRequest(f"the config is of model {config.name!r}, not of {model!r}")
    if config.max_batch_size < 0:
        raise InvalidRequest(f"max_batch_size is {config.max_batch_size}; it is 0 or more")
    batching = config.dynamic_batching
    sizes = {1, max(1, config.max_batch_size), *batching.preferred_batch_size}
    passed_over += _instances(config.instance_group, devices)
    passed_over += _passed_over(batching, "dynamic_batching")
    if config.parameters and not config.parameters.keys() - _PARAMETERS:
        passed_over.remove("parameters")
    return Configuration(
        batch_sizes=ModelOptions(tuple(sizes)).batch_sizes,
        pad=_pad(config.parameters),
        lengths=_lengths(config.parameters),
        batchable=_is_true(config.parameters, _BATCHABLE),
        max_batch_size=config.max_batch_size,
        versions=_versions(config.version_policy),
        max_wait_ms=batching.max_queue_delay_microseconds / 1000 or None,
        residency=_residency(config.parameters),
        filename=_plain(config.default_model_filename, "default_model_filename") or MODEL_FILE,
        interface=_interface(config, read_labels),
        is_given=True,
        passed_over=tuple(passed_over),
    )


def _check_backend(platform: str, backend: str) -> None:
    if platform in _PLATFORMS and backend in _BACKENDS:
        return
    asked = backend if backend not in _BACKENDS else platform
    advice = _ADVICE.get(asked.partition("_")[0], "give the model as ONNX, or as .pt2")
    raise InvalidRequest(
        f"platform {platform!r} with backend {backend!r} is not served here: {advice}; then leave "
        f"both out, or say {_PLATFORMS[-1]!r} and {_BACKENDS[-1]!r}"
    )


def _passed_over(message: Message, where: str) -> list[str]:
    """Fields that are set and change no answer, within ``where``. InvalidRequest: not offered."""
    kind = message.DESCRIPTOR.name
    offered = _OFFERED[kind].split()
    given = [field.name for field, _ in message.ListFields() if field.name not in offered]
    passed_over = [name for name in given if name in _PASSED_OVER.get(kind, "").split()]
    if unknown := [name for name in given if name not in passed_over]:
        raise InvalidRequest(f"{where} asks for {', '.join(unknown)}: not offered here")
    return passed_over if where == _WHOLE else [f"{where}.{name}" for name in passed_over]


def _versions(policy: Any) -> VersionPolicy | None:
    """Which versions are to serve; None: left open. InvalidRequest: none, or too many, named."""
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


def _pad(parameters: Any) -> Mapping[str, str]:
    """Return how axes are padded, by name. Raises InvalidRequest: it is not AXIS=WAY."""
    if _PAD not in parameters:
        return {}
    given = parameters[_PAD].string_value
    axis, _, way = given.rpartition("=")
    if not axis:
        raise InvalidRequest(f"parameter {_PAD} is {given[:50]!r}; give AXIS={ZEROS}")
    return ModelOptions((1,), pad={axis: way}).pad


def _lengths(parameters: Any) -> str:
    """Return the lengths to schedule. Raises InvalidRequest: they are no lengths."""
    given = parameters[_LENGTHS].string_value if _LENGTHS in parameters else NO_LENGTHS
    return ModelOptions((1,), lengths=given).lengths


def _is_true(parameters: Any, name: str) -> bool:
    """Whether a parameter is true; absent, it is false. InvalidRequest: it is neither."""
    given = parameters[name].string_value if name in parameters else "false"
    if given not in ("true", "false"):
        raise InvalidRequest(f"parameter {name} is {given[:50]!r}; give true or false")
    return given == "true"


_BATCHABLE, _LENGTHS, _PAD = "batchable", "lengths", "pad"
_RESIDENCY = frozenset({"residency", "idle_seconds", "refuse_unloaded"})
"""Parameters that say when a model is in memory."""

_PARAMETERS = _RESIDENCY | {_BATCHABLE, _LENGTHS, _PAD}
"""Parameters that are read; others are for clients, who find them in ModelConfig."""


def _residency(parameters: Any) -> Residency | None:
    """When the model is to be in memory; None: left open. InvalidRequest: a bad parameter."""
    given = {name: parameters[name].string_value for name in _RESIDENCY & parameters.keys()}
    if not given:
        return None
    refuses = _is_true(parameters, "refuse_unloaded")
    try:
        idle_s = float(given["idle_seconds"]) if "idle_seconds" in given else None
    except ValueError:
        raise InvalidRequest(
            f"parameter idle_seconds is {given['idle_seconds'][:50]!r}; give seconds"
        ) from None
    return Residency(given.get("residency", ON_DEMAND), idle_s, refuses)


def _plain(name: str, field: str) -> str:
    if "/" in name or name.startswith("."):
        raise InvalidRequest(f"{field} {name[:100]!r} is not a file's name")
    return name


def _interface(config: Any, read_labels: ReadLabels) -> Interface:
    """The declared inputs, outputs and parameters. InvalidRequest: not offered, sizes differ."""
    inputs = tuple(_declared(tensor, "input", read_labels) for tensor in config.input)
    outputs = tuple(_declared(tensor, "output", read_labels) for tensor in config.output)
    is_whole = config.max_batch_size == 0 and any(tensor.dims for tensor in inputs)
    shown = config.parameters.keys() - _PARAMETERS
    parameters = {name: config.parameters[name].string_value for name in sorted(shown)}
    return Interface(inputs, outputs, has_batch=not is_whole, parameters=parameters)


def _declared(tensor: Any, kind: str, read_labels: ReadLabels) -> DeclaredTensor:
    where, labels, dims, form = f"{kind} {tensor.name!r}", "", tuple(tensor.dims), "FORMAT_NONE"
    _passed_over(tensor, where)
    own = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else dims
    if math.prod(own) != math.prod(dims) or own.count(OPEN) != dims.count(OPEN):
        raise InvalidRequest(
            f"{where} has dims {list(dims)} and the reshape {list(own)}, which are of another size"
        )
    if kind == "input":
        form = wire.ModelInput.Format.Name(tensor.format)
    elif tensor.label_filename:
        try:
            labels = read_labels(_plain(tensor.label_filename, "label_filename")).decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{tensor.label_filename} is no text in UTF-8") from None
    data_type = str(wire.DataType.Name(tensor.data_type))
    return DeclaredTensor(tensor.name, data_type, dims, own, form, tuple(labels.splitlines()))


def _instances(groups: Sequence[Any], devices: Collection[str]) -> list[str]:
    """What groups of instances ask for beside one for each device; raises InvalidRequest."""
    passed_over = [text for group in groups for text in _passed_over(group, "instance_group")]
    kinds = {"KIND_GPU" if name.startswith("cuda") else "KIND_CPU" for name in devices}
    for group in groups:
        kind = wire.ModelInstanceGroup.Kind.Name(group.kind)
        is_there = kind in ("KIND_AUTO", *kinds) and all(f"cuda:{n}" in devices for n in group.gpus)
        if group.count > 1 or len(groups) > 1 or not is_there:
            here = ", ".join(sorted(devices))
            return [*passed_over, f"instance_group (one instance runs on each of {here})"]
    return passed_over
