"""Small models and the independent oracle: the same model through Braid and ONNX Runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor

from braid.core.graph import OpGraph
from braid.core.tensor import TensorType
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.session_run import new_session
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret, specialise, static_inputs

Array = NDArray[Any]
Arrays = Mapping[str, Array]

onnxruntime.set_default_logger_severity(3)


@dataclass(frozen=True)
class Const:
    """An operand that is an initialiser of the model, not an input."""

    array: Array


Operand = Array | Const | None


def node_model(
    op_type: str, operands: Sequence[Operand], opset: int, outputs: int = 1, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and its inputs; extents of the inputs are left open."""
    inputs, constants, names = {}, [], []
    for i, operand in enumerate(operands):
        name = f"x{i}" if operand is not None else ""
        names.append(name)
        if isinstance(operand, Const):
            constants.append(numpy_helper.from_array(operand.array, name))
        elif operand is not None:
            inputs[name] = operand
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, made, name="node", **attributes)
    graph = helper.make_graph(
        [node],
        "one_node",
        [value_info(name, array) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in made],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = min(model.ir_version, 10)  # that ONNX Runtime reads
    return onnx.shape_inference.infer_shapes(model), inputs


def value_info(name: str, array: Array, dims: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    """Declares a tensor like ``array``, with open extents unless ``dims`` are given."""
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, element, dims or [None] * array.ndim)


def through_braid(
    model: onnx.ModelProto, inputs: Arrays
) -> tuple[dict[str, Array], OpGraph, OpGraph]:
    """Outputs, the template and the static graph they came from."""
    template, weights = lower(prepare(model))
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
    static_values = {name: tensors[name] for name in static_inputs(template)}
    specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
    graph, constants = specialise(template, weights, specs, static_values)
    graph.verify()
    assert not any(op.host or op.branches for op in graph.operators)
    results = interpret(graph, constants, tensors)
    return {name: tensor.numpy() for name, tensor in results.items()}, template, graph


def static_graph(
    model: onnx.ModelProto, inputs: Mapping[str, Tensor] | int
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The graph after all passes, at the shapes of these inputs or at so many rows."""
    template, weights = run_passes(*lower(prepare(model)))
    if isinstance(inputs, int):
        specs = {
            name: TensorType(spec.dtype, (inputs, *spec.shape[1:]))
            for name, spec in template.inputs.items()
        }
        return specialise(template, weights, specs)
    specs = {name: spec_of(tensor) for name, tensor in inputs.items()}
    static_values = {name: inputs[name] for name in static_inputs(template)}
    return specialise(template, weights, specs, static_values)


def through_onnxruntime(model: onnx.ModelProto, inputs: Arrays) -> dict[str, Array]:
    session = new_session(model.SerializeToString(), onnxruntime.SessionOptions())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_agrees(model: onnx.ModelProto, inputs: Arrays, tolerance: float = 1e-5) -> OpGraph:
    """Same outputs as ONNX Runtime, relative to the largest; returns the template."""
    ours, template, _ = through_braid(model, inputs)
    assert_same(ours, through_onnxruntime(model, inputs), tolerance)
    return template


def assert_same(ours: Arrays, reference: Arrays, tolerance: float) -> None:
    """Same names, element types, shapes and values; NaN and infinities in the same places."""
    assert list(ours) == list(reference)
    for name, expected in reference.items():
        got = ours[name]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
        if expected.size == 0:
            continue
        finite = np.isfinite(expected.astype(np.float64))
        scale = np.abs(expected[finite]).max(initial=0) if finite.any() else 0
        np.testing.assert_allclose(
            got.astype(np.float64),
            expected.astype(np.float64),
            rtol=0,
            atol=tolerance * float(scale or 1),
            err_msg=name,
        )
