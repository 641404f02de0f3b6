"""A checked program as an ONNX model: torch reads it, and torch.onnx writes it.

    Program + weights ──exported──> torch.export.ExportedProgram ──write_onnx──> model.onnx

Runs in the importer's process only. torch's reader gets what ``document.py`` let through and the
tensors of weights, never the file, so it meets no pickle, no code and no class to import.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir
import torch
from torch import Tensor
from torch._decomp.decompositions import lstm_impl
from torch._export.serde import schema, serialize
from torch.utils import _pytree

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.pt2.document import OPERATORS_PAGE, Program
from braid.engine.runtime.memory import raise_out_of_memory

MOST_INSIDE_BYTES = 1536 << 20  # of weights inside an ONNX file: protobuf takes 2 GB

_OVERLOAD = re.compile(r"OpOverload\(op='([\w.]+)', overload='(\w+)'\)")


def _adaptive_max_pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Largest element of each window; a model that reads its place fails its comparison."""
    first = x.dim() - len(output_size)
    for axis, count in enumerate(output_size, start=first):
        extent = x.shape[axis]
        ends = [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        windows = [x.narrow(axis, start, end - start).amax(axis) for start, end in ends]
        x = torch.stack(windows, axis)
    return x, torch.full_like(x, -1, dtype=torch.int64)


def _distances(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)
    return lengths


def _cumulative_product(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    exact = x.dtype if x.is_floating_point() or x.is_complex() else torch.int64
    extent, x, step = x.shape[dim], x.to(dtype or exact), 1
    if not isinstance(extent, int):
        raise ValueError("cumprod has no form for an axis of any length; export it with that fixed")
    while step < extent:
        rest = extent - step
        longer = x.narrow(dim, step, rest) * x.narrow(dim, 0, rest)
        x = torch.cat([x.narrow(dim, 0, step), longer], dim)
        step *= 2
    return x


def _lstm(x: Tensor, state: Sequence[Tensor], *rest: Any) -> Any:
    """Steps of an LSTM with a projection, which ONNX's LSTM lacks."""
    projects = state[0].shape[2] != state[1].shape[2]
    return lstm_impl(x, state, *rest) if projects else NotImplemented


_aten = torch.ops.aten
DECOMPOSED: Mapping[Any, Callable[..., Any]] = {
    _aten.adaptive_max_pool1d.default: _adaptive_max_pool,
    _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
    _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
    _aten.cdist.default: _distances,
    _aten._cdist_forward.default: _distances,
    _aten._neg_view.default: torch.neg,
    _aten.cumprod.default: _cumulative_product,
    _aten.lstm.input: _lstm,
}


def exported(program: Program, weights: Mapping[str, Tensor]) -> torch.export.ExportedProgram:
    """Let torch read the program; ``ModelImportError`` with torch's reason if it refuses it."""
    graph = {**program.document["graph_module"], "module_call_graph": [_flat_call(program)]}
    names = program.weights
    state = {name: weights[name] for name in names.buffers}
    state |= {name: torch.nn.Parameter(weights[name], False) for name in names.parameters}
    constants = {name: weights[name] for name in names.constants}
    try:
        document = serialize._dict_to_dataclass(
            schema.ExportedProgram, {**program.document, "graph_module": graph}
        )
        return serialize.ExportedProgramDeserializer().deserialize(document, state, constants)
    except Exception as error:  # whatever a malformed graph makes of torch's reader
        raise_out_of_memory(error)
        raise ModelImportError(
            f"torch cannot read the graph of the .pt2: {_said(error)}"
        ) from error


def _flat_call(program: Program) -> dict[str, object]:
    """Call of the module with its arguments one by one, in place of the trees of the file."""
    no_keywords: dict[str, int] = {}
    arguments = (tuple(range(program.arguments)), no_keywords)
    results = tuple(range(len(program.outputs)))
    signature = {
        "inputs": [],
        "outputs": [],
        "in_spec": _pytree.treespec_dumps(_pytree.tree_structure(arguments)),
        "out_spec": _pytree.treespec_dumps(_pytree.tree_structure(results)),
    }
    return {"fqn": "", "signature": signature}


def write_onnx(
    program: torch.export.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    file: Path,
) -> frozenset[str]:
    """Write an ONNX file; returns names of files beside it with its weights, if near 2 GB.

    ``inputs`` are names for arguments that are tensors, ``outputs`` for results that are computed.

    Raises:
        UnsupportedOperators: torch.onnx has no form of an operator.
        ModelImportError: it cannot be written for another reason.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            converted = _converted(program, DECOMPOSED if _projects(program) else None)
        except UnsupportedOperators as refusal:
            called = {str(node.target) for node in program.graph.nodes} | {refusal.reasons[0]}
            if not any(str(operator) in name for operator in DECOMPOSED for name in called):
                raise
            converted = _converted(program, DECOMPOSED)
    _mask_by_infinity(converted.model.graph)
    _give_names(converted.model.graph, inputs, outputs)
    initializers = converted.model.graph.initializers.values()
    weights = [tensor for value in initializers if (tensor := value.const_value) is not None]
    if sum(tensor.nbytes for tensor in weights) > MOST_INSIDE_BYTES:
        converted.save(file, external_data=True)
    else:
        _save(converted.model, file)
    return frozenset(part.name for part in file.parent.glob(f"{file.name}.*"))


def _projects(program: torch.export.ExportedProgram) -> bool:
    states = [node.args[1] for node in program.graph.nodes if node.target is _aten.lstm.input]
    return any(len({part.meta["val"].shape[2] for part in state}) > 1 for state in states)


def _save(model: onnx_ir.Model, file: Path) -> None:
    """Write a model and its weights, one after the other; takes the weights out of it.

    A message of protobuf with the weights takes their size up to four times (upb).
    """
    weights: list[onnx_ir.TensorProtocol] = []
    names = []
    for name, value in list(model.graph.initializers.items()):
        if value.const_value is not None:
            names.append(name)
            weights.append(value.const_value)
            del model.graph.initializers[name]
    message = onnx_ir.to_proto(model)
    graph = message.graph.SerializeToString()
    message.ClearField("graph")
    heads = []
    for name, weight in zip(names, weights, strict=True):
        tensor = onnx.TensorProto(name=name, data_type=weight.dtype, dims=weight.shape.numpy())
        data = _field(onnx.TensorProto, "raw_data", weight.nbytes)
        inside = tensor.SerializeToString() + data
        size_bytes = len(inside) + weight.nbytes
        heads.append(_field(onnx.GraphProto, "initializer", size_bytes) + inside)
    size_bytes = len(graph) + sum(map(len, heads)) + sum(weight.nbytes for weight in weights)
    with file.open("wb") as out:
        out.write(message.SerializeToString())
        out.write(_field(onnx.ModelProto, "graph", size_bytes) + graph)
        for head, weight in zip(heads, weights, strict=True):
            out.write(head)
            out.write(weight.tobytes())


def _field(message: Any, name: str, size_bytes: int) -> bytes:
    """What stands before the bytes of a field in protobuf's encoding: its number and size."""
    number = message.DESCRIPTOR.fields_by_name[name].number
    return _varint(number << 3 | 2) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _converted(
    program: torch.export.ExportedProgram, table: Mapping[Any, Callable[..., Any]] | None
) -> torch.onnx.ONNXProgram:
    try:
        program = program if table is None else program.run_decompositions(dict(table))
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:  # chained, the cause last
        raise_out_of_memory(error)
        raise _refusal(error) from error
    assert converted is not None
    return converted


def _mask_by_infinity(graph: onnx_ir.Graph) -> None:
    """Let attention answer zeros to a query that may look at no key, as torch does.

    torch.onnx gives the mask the least number instead of -inf (onnxscript 0.7), so that no NaN
    comes up for its zeros to replace.
    """
    for node in list(graph.all_nodes()):
        softmax = node.inputs[0].producer() if node.op_type == "IsNaN" and node.inputs[0] else None
        scores = _producer(softmax, "Softmax", 0)
        mask = _producer(scores, "Add", 1)
        if mask is None or mask.op_type != "Where" or mask.inputs[2] is None:
            continue
        least = mask.inputs[2].const_value
        if least is None or least.size != 1 or mask.graph is None:
            continue
        infinity = onnx_ir.tensor(-math.inf, dtype=least.dtype)
        constant = onnx_ir.node("Constant", [], {"value": infinity})
        mask.graph.insert_before(mask, constant)
        mask.replace_input_with(2, constant.outputs[0])


def _producer(node: onnx_ir.Node | None, op_type: str, place: int) -> onnx_ir.Node | None:
    if node is None or node.op_type != op_type:
        return None
    operand = node.inputs[place]
    return None if operand is None else operand.producer()


def _give_names(graph: onnx_ir.Graph, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give inputs and outputs of a graph these names, in place of those that torch chose."""
    for place, value in enumerate(list(graph.outputs)):
        if value.producer() is None or value in graph.outputs[:place]:  # an input, or given twice
            copy = onnx_ir.node("Identity", [value])
            graph.append(copy)
            graph.outputs[place] = copy.outputs[0]
            graph.outputs[place].type, graph.outputs[place].shape = value.type, value.shape
    ends = [*graph.inputs, *graph.outputs]
    names = [*inputs, *outputs]
    taken = set(names)
    for value in [value for node in graph.all_nodes() for value in node.outputs]:
        if value.name in taken:
            value.name = f"{value.name}/inner"
    for name in taken & set(graph.initializers):
        weight = graph.initializers.pop(name)
        weight.name = f"{name}/weight"
        graph.initializers[weight.name] = weight
    for place, value in enumerate(graph.inputs):
        value.name = f"input/{place}"  # so that names may be exchanged
    for value, name in zip(ends, names, strict=True):
        value.name = name


def _refusal(error: BaseException) -> ModelImportError:
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    for cause in causes:
        if missing := _OVERLOAD.search(str(cause)):
            name = f"{missing[1].replace('aten::', 'aten.')}.{missing[2]}"
            return UnsupportedOperators((f"{name}: torch.onnx has no form of it",), OPERATORS_PAGE)
    return ModelImportError(f"torch.onnx cannot write this .pt2 as ONNX: {_said(causes[-1])}")


def _said(error: BaseException) -> str:
    """First line of a message; of one with a trace, the line that ends the trace."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traces = [place for place, line in enumerate(lines) if line.startswith("  ")]
    after = lines[traces[-1] + 1 :] if "Traceback" in str(error) and traces else lines
    return (after[0].strip() if after else type(error).__name__)[:300]
