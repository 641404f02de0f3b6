"""What the ONNX models of tests are put together from: tensors, graphs, functions, files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
"""Of ONNX, and of the local functions of tests."""

DOMAINS = {"ai.onnx.ml": 3, "com.microsoft": 1, "own": 1}
"""Operator sets beside ONNX's own, of models in its text format."""


def tensors(element: int = TensorProto.FLOAT, /, **shapes: Any) -> list[onnx.ValueInfoProto]:
    """Declared tensors by name, FP32 by default; a name in a shape is an open extent."""
    return [
        helper.make_tensor_value_info(name, element, None if shape is None else list(shape))
        for name, shape in shapes.items()
    ]


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    name: str = "drawn",
) -> onnx.GraphProto:
    initialisers = [
        numpy_helper.from_array(np.asarray(array), key) for key, array in (constants or {}).items()
    ]
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), initialisers)


def parsed(
    text: str, constants: Mapping[str, Any] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """A model in ONNX's text format: ``(float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }``.

    ``constants`` are arrays, or tensors of types that numpy lacks; ``float[]`` has any rank,
    ``float`` is a scalar.
    """
    domains = {"": opset} | {name: at for name, at in DOMAINS.items() if f"{name}." in text}
    imports = ", ".join(f'"{name}": {version}' for name, version in domains.items())
    made = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> drawn {text}")
    made.graph.initializer.extend(
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), key)
        for key, array in (constants or {}).items()
    )
    return made


def from_x(
    body: str, shape: str = "n, 4", /, *, functions: str = "", **constants: Any
) -> onnx.ModelProto:
    """A model in that format from ``x`` to ``y``, both FP32."""
    return parsed(f"(float[{shape}] x) => (float[] y) {{ {body} }} {functions}", constants)


def own_function(signature: str, body: str) -> str:
    """A local function of the domain ``own`` in that format, which follows a model's graph."""
    return f'<domain: "own", opset_import: ["": 17, "own": 1]> {signature} {{ {body} }}\n'


def as_model(drawn: onnx.GraphProto) -> onnx.ModelProto:
    """A model of opset 17 that every ONNX Runtime reads."""
    return helper.make_model(drawn, opset_imports=OPSETS, ir_version=8)


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    shape: Sequence[int | str] = ("n", 4),
    output: str = "y",
) -> onnx.ModelProto:
    """A model from ``x`` to ``output``, both FP32."""
    drawn = graph(nodes, tensors(x=shape), tensors(**{output: None}), constants)
    return as_model(drawn)


def save(drawn: onnx.GraphProto, path: Path) -> Path:
    path.write_bytes(as_model(drawn).SerializeToString())
    return path
