"""Whole ONNX model as one operator, run by ONNX Runtime, where the lowering table lacks one.

The model is a constant of bytes, so it lies in the artefact with the weights. A session is made
when the operator first runs and lives as long as that constant. Runs only in processes that may
die: the importer and the device worker.
"""

import threading
import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from braid.core.allowance import usable_memory_bytes
from braid.core.errors import InvalidRequest, OtherExtents
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import Dim, TensorType
from braid.engine.ops.dtypes import (
    array_of,
    is_strings,
    spec_of,
    strings_array,
    strings_tensor,
    tensor_of,
    torch_dtype,
)
from braid.engine.ops.kinds import op, operator
from braid.engine.ops.session_run import new_session, run_session
from braid.engine.ops.value_ranges import refused_values
from braid.engine.runtime.arrays import Array, address_of
from braid.engine.runtime.stopping import stoppable_session_run

KIND = "braid.onnxruntime"
RUN_SECONDS = 60.0  # without a stop signal: a loop over run-time values may never end
MOST_BYTES = 16 << 30  # limit of all tensors of all sessions together, on any machine

_MODEL = "model"

_FRAGILE = ("GRU", "LSTM", "ConvTranspose", "STFT", "Unique")  # end the process by empty operands

_sessions: dict[int, tuple[Any, str]] = {}  # address of the model -> as ``_session``
_registered = threading.Event()

Extents = Sequence[int | str]


@dataclass(frozen=True, slots=True)
class WholeModel:
    """Attributes of ``braid.onnxruntime``; an extent whose name no input has follows content."""

    names: Sequence[str]  # the model's inputs
    outputs: Sequence[str]
    input_shapes: Sequence[Extents]
    shapes: Sequence[Extents]  # of the outputs, in the names of the inputs' extents
    dtypes: Sequence[str]  # of the outputs
    loops: bool = False  # written by earlier versions
    origins: Sequence[Sequence[str]] = ()  # inputs that decide addresses (refused_values.py)
    longest: int = 0  # bytes of the longest string that is written in the model
    range_by: str = ""  # written by earlier versions
    follows_content: bool = False  # an output has an extent that follows the content
    is_untried: bool = False  # it never ran, so even the ranks of its outputs may be others

    def result_specs(self, shapes: Sequence[Extents]) -> list[TensorType]:
        """Extents that follow content keep names; ``ValueError`` if inputs are not as declared."""
        extents: dict[int | str, int | str] = {}
        for shape, declared in zip(shapes, self.input_shapes, strict=True):
            if len(declared) != len(shape):
                raise ValueError(f"an input has {len(shape)} axes, the model takes {len(declared)}")
            for name, extent in zip(declared, shape, strict=True):
                if isinstance(name, int):
                    extents[name] = name
                if extents.setdefault(name, extent) != extent:
                    raise ValueError(f"an extent is {extent}, the model takes {extents[name]}")
        return [
            TensorType(dtype, tuple(extents.get(dim, dim) for dim in shape))
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]

    def check(self, results: Sequence[Any], specs: Sequence[TensorType]) -> None:
        """Raise ``OtherExtents`` for the first result of another shape than the import saw."""
        for name, result, wanted in zip(self.outputs, results, specs, strict=True):
            if not (self.is_untried or wanted.takes(result.shape)):
                raise OtherExtents(
                    f"output {name!r} is {list(result.shape)} for this content, not "
                    f"{list(wanted.shape)} as when the model was imported"
                )


@operator(KIND, as_filed=True, whole=WholeModel)
def whole_model(model: Tensor, *inputs: Tensor, whole: WholeModel) -> tuple[Tensor, ...]:
    """Run a ``model`` that is stored as bytes.

    Raises:
        InvalidRequest: an operator cannot use the values.
        RunStopped: the run was stopped, or took ``RUN_SECONDS`` without a stop signal.
    """
    return run_whole_model(model, inputs, whole, RUN_SECONDS)


def run_whole_model(
    model: Tensor, inputs: Sequence[Tensor], whole: WholeModel, seconds: float
) -> tuple[Tensor, ...]:
    """Run as ``whole_model`` does, without a stop signal at most for ``seconds``."""
    specs = whole.result_specs([tensor.shape for tensor in inputs])
    if any(tensor.is_meta for tensor in inputs):
        return tuple(map(_without_data, specs))
    feeds = {name: as_array(tensor) for name, tensor in zip(whole.names, inputs, strict=True)}
    results = run_arrays(model, feeds, whole, specs, seconds)
    device = inputs[0].device
    return tuple(as_tensor(result).to(device) for result in results)


def run_arrays(
    model: Tensor | Array,
    feeds: Mapping[str, Any],
    whole: WholeModel,
    specs: Sequence[TensorType],
    seconds: float = RUN_SECONDS,
) -> list[Any]:
    """Run on numpy arrays, strings as objects; ``specs`` are those of the results."""
    session, fragile = _session(model)
    if fragile and any(0 in array.shape for array in feeds.values()):
        raise InvalidRequest(f"an input has no elements; a model with {fragile} needs some")
    with stoppable_session_run(seconds) as options:
        try:
            results = run_session(session, whole.outputs, feeds, options)
        except Exception as error:  # its exceptions share no base but this
            if (refusal := refused_values(error, whole.origins)) is not None:
                raise refusal from error
            line = str(error).strip().partition("\n")[0]
            if " : INVALID_ARGUMENT : " in line:
                raise InvalidRequest(f"ONNX Runtime: {line}") from error
            raise RuntimeError(f"ONNX Runtime: {line}") from error
    whole.check(results, specs)
    return results


def run_named(
    graph: OpGraph, constants: Mapping[str, Tensor | Array], feeds: Mapping[str, Any]
) -> dict[str, tuple[Any, TensorType]]:
    """Run a graph of one whole model on numpy arrays, strings as objects."""
    (unit,) = graph.operators
    assert unit.kind == KIND, unit.kind
    whole = attributes_of(unit)
    specs = whole.result_specs([feeds[name].shape for name in whole.names])
    results = run_arrays(constants[unit.inputs[0]], feeds, whole, specs)
    by_value = dict(zip(unit.outputs, zip(results, specs, strict=True), strict=True))
    return {name: by_value[value] for name, value in graph.outputs.items()}


def _without_data(spec: TensorType) -> Tensor:
    """Return a tensor of a spec; an extent that follows the content is 0."""
    shape = [dim if isinstance(dim, int) else 0 for dim in spec.shape]
    return torch.empty(shape, dtype=torch_dtype(spec.dtype), device="meta")


def output_specs(graph: OpGraph) -> dict[str, TensorType]:
    """By the names that callers see; of a whole model, extents that follow content have names."""
    specs = {value: graph.spec(value) for value in graph.outputs.values()}
    for unit in graph.operators:
        if unit.attributes.get("follows_content"):
            shapes = [graph.spec(name).shape for name in unit.inputs[1:]]
            specs.update(zip(unit.outputs, attributes_of(unit).result_specs(shapes), strict=True))
    return {name: specs[value] for name, value in graph.outputs.items()}


def named_axes(output: str, dims: Iterable[Dim | None], taken: Container[Dim]) -> tuple[Dim, ...]:
    """Return a shape in which extents that follow nothing, given as None, have names."""
    return tuple(
        _free_name(f"{output}_{axis}", taken) if dim is None else dim
        for axis, dim in enumerate(dims)
    )


def _free_name(name: str, taken: Container[Dim]) -> str:
    while name in taken:
        name += "'"
    return name


def whole_graph(
    name: str,
    inputs: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
    model: Tensor,
    attributes: Mapping[str, Literal],
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Return the graph of one operator that runs a model (bytes, UINT8), and its only constant.

    In ``outputs`` an extent with a name of no input follows the content. ``attributes`` come
    beside what the specs say.
    """
    constant = _MODEL
    while constant in inputs or constant in outputs:
        constant += "'"
    named = {dim for spec in inputs.values() for dim in spec.shape}
    open_dims = {dim for spec in outputs.values() for dim in spec.shape if isinstance(dim, str)}
    stated: dict[str, Literal] = {
        "names": list(inputs),
        "outputs": list(outputs),
        "input_shapes": [list(spec.shape) for spec in inputs.values()],
        "shapes": [list(spec.shape) for spec in outputs.values()],
        "dtypes": [spec.dtype for spec in outputs.values()],
        "follows_content": not open_dims <= named,
    }
    values = tuple(f"{output}:0" for output in outputs)
    operator = Operator(
        "onnxruntime", KIND, (constant, *inputs), values, attributes={**stated, **attributes}
    )
    graph = OpGraph(
        name=name,
        inputs=inputs,
        outputs=dict(zip(outputs, values, strict=True)),
        constants={constant: spec_of(model)},
        operators=(operator,),
    )
    graph.verify()
    return graph, {constant: model}


def loose_graph(template: OpGraph, model: Tensor) -> tuple[OpGraph, dict[str, Tensor]]:
    """Graph that runs a template's ``model`` whole, with extents of any size, and its bytes."""
    specs = {name: template.spec(value) for name, value in template.outputs.items()}
    inputs = {name: _open(f"{name}<", spec) for name, spec in template.inputs.items()}
    outputs = {name: _open(f"{name}>", spec) for name, spec in specs.items()}
    stated = next((unit.attributes for unit in template.operators if unit.kind == KIND), {})
    kept = {key: stated[key] for key in ("origins", "longest") if key in stated}
    return whole_graph(template.name, inputs, outputs, model, {**kept, "is_untried": True})


def _open(name: str, spec: TensorType) -> TensorType:
    return TensorType(spec.dtype, tuple(f"{name}{axis}" for axis in range(len(spec.shape))))


def attributes_of(unit: Operator) -> WholeModel:
    model: WholeModel = op(KIND).bound(unit.attributes).keywords["whole"]  # type: ignore[attr-defined]
    return model


def as_array(tensor: Tensor) -> Any:
    """Return a tensor as ONNX Runtime takes it; strings as objects."""
    if is_strings(tensor):
        return strings_array(tensor)
    return array_of(tensor.detach().cpu().contiguous())


def as_tensor(result: Any) -> Tensor:
    """The tensor of an array, also of texts; ``TypeError`` if torch has not its type."""
    array = np.array(result, order="C")
    return strings_tensor(array) if array.dtype.kind in "OU" else tensor_of(array)


def _session(model: Tensor | Array) -> tuple[Any, str]:
    """Return the session of a model, and a kind in it that takes no empty operands; "": none.

    It stays as long as what it was opened for, and serves all that lie in the same memory.
    """
    array = array_of(model)
    key = address_of(array)
    if key not in _sessions:
        content = array.tobytes()
        fragile = next((kind for kind in _FRAGILE if kind.encode() in content), "")
        _sessions[key] = open_session(content, torch.get_num_threads()), fragile
        weakref.finalize(model, _sessions.pop, key, None)
    return _sessions[key]


def open_session(model: bytes, threads: int, most_bytes: int = MOST_BYTES) -> Any:
    """Open a session on the CPU without spinning threads; the first one bounds all tensors."""
    import onnxruntime

    _bound_memory(onnxruntime, most_bytes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.use_env_allocators", "1")
    return new_session(model, options)


def _bound_memory(onnxruntime: Any, most_bytes: int) -> None:
    """Let all sessions share one arena of at most half the memory there is."""
    if _registered.is_set():
        return
    _registered.set()
    where = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    limits = {"max_mem": min(most_bytes, usable_memory_bytes() // 2), "arena_extend_strategy": 1}
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg(limits))
