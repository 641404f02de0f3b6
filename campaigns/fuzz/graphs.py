"""Random valid ONNX graphs: hypothesis draws nodes from the table, onnx infers their shapes.

Draft ──add(maker)──> node on values drawn before ──shape inference──> new values ──> ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, shape_inference

OPSETS = (13, 17, 18, 21)
MOST_ELEMENTS = 20_000
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

Draw = Callable[..., Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph being drawn."""

    name: str
    dtype: int
    shape: Shape


@dataclass
class Draft:
    """A graph under construction. Its weights are drawn from a seeded generator."""

    draw: Draw
    opset: int
    random: np.random.Generator
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def pick(self, dtype: int = FLOAT, rank: tuple[int, int] = (0, 9)) -> Value | None:
        fits = [v for v in self.values if v.dtype == dtype and rank[0] <= len(v.shape) <= rank[1]]
        return self.draw(st.sampled_from(fits)) if fits else None

    def constant(self, array: np.ndarray) -> Value:
        name = f"w{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(array, name)
        return Value(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    def weight(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Value:
        """A random initialiser."""
        return self.constant(self.random.uniform(low, high, shape).astype(np.float32))

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, max(low, high))))

    def one_of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def axis(self, value: Value) -> int:
        """An axis, counted from either end."""
        return self.integer(-len(value.shape), len(value.shape) - 1)

    def emit(
        self, op_type: str, operands: Sequence[Value | None], outputs: int = 1, **attributes: Any
    ) -> bool:
        """Add a node if onnx can infer what it makes, and that is small."""
        names = [operand.name if operand is not None else "" for operand in operands]
        results = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op_type, names, results, **attributes)
        values = self._inferred(node, [o for o in operands if o is not None])
        if values is None:
            return False
        self.nodes.append(node)
        self.values += values
        return True

    def _inferred(self, node: onnx.NodeProto, operands: Sequence[Value]) -> list[Value] | None:
        infos = {
            o.name: helper.make_tensor_value_info(o.name, o.dtype, list(o.shape)) for o in operands
        }
        constants = [self.weights[name] for name in infos if name in self.weights]
        graph = helper.make_graph(
            [node],
            "one",
            [info for name, info in infos.items() if name not in self.weights],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            constants,
        )
        one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            outputs = shape_inference.infer_shapes(one, True, True, True).graph.output
        except Exception:  # a misfit: the drawing goes on without this node
            return None
        values = []
        for info in outputs:
            tensor = info.type.tensor_type
            if not tensor.HasField("shape") or tensor.elem_type not in (FLOAT, INT, BOOL):
                return None
            if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                return None
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            if np.prod(shape, dtype=np.int64) > MOST_ELEMENTS or 0 in shape or len(shape) > 6:
                return None
            values.append(Value(info.name, tensor.elem_type, shape))
        return values

    def model(self) -> onnx.ModelProto:
        """The graph so far; what nothing reads is an output."""
        read = {name for node in self.nodes for name in node.input}
        results = {name for node in self.nodes for name in node.output}
        left = [v for v in self.values if v.name in results - read]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in self.inputs],
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in left],
            list(self.weights.values()),
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@st.composite
def models(draw: Draw, makers: dict[str, Callable[[Draft], bool]] | None = None) -> onnx.ModelProto:
    """A model of one to a dozen nodes on one or two inputs."""
    from campaigns.fuzz.makers import MAKERS

    makers = makers or MAKERS
    draft = Draft(
        draw, draw(st.sampled_from(OPSETS)), np.random.default_rng(draw(st.integers(0, 99)))
    )
    shapes = ((2, 3, 8, 8), (1, 4, 7, 5), (2, 6), (3, 5, 4), (4,), (2, 3, 6))
    for index in range(draft.integer(1, 2)):
        shape = draw(st.sampled_from(shapes))
        draft.inputs.append(Value(f"x{index}", FLOAT, shape))
    draft.values += draft.inputs
    for _ in range(draft.integer(1, 12)):
        makers[draw(st.sampled_from(sorted(makers)))](draft)
    if not draft.nodes:
        draft.emit("Relu", [draft.inputs[0]])
    return draft.model()
