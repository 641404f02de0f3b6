"""Models whose files say less of their extents, or other things, than their graphs take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.models.graphs import as_model, graph, tensors

Feed = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A model, and shapes of its inputs that ONNX Runtime takes."""

    build: Callable[[], onnx.ModelProto]
    shapes: Sequence[Sequence[tuple[int, ...]]]

    def feeds(self, seed: int = 0) -> list[Feed]:
        random = np.random.default_rng(seed)
        names = [info.name for info in self.build().graph.input]
        return [
            {
                name: random.standard_normal(shape, np.float32)
                for name, shape in zip(names, shapes, strict=True)
            }
            for shapes in self.shapes
        ]


def whole(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    output: Any,
    constants: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A model that ONNX Runtime runs whole: ``g`` is a function of its own of ``x``."""
    own = helper.make_node("QuickGelu", ["x"], ["g"], domain="com.microsoft")
    made = as_model(graph([own, *nodes], tensors(**inputs), tensors(y=output), constants))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def mask_of_all_rows() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    inputs = tensors(x=["b", "t"], mask=[1, "t"])
    return as_model(graph(nodes, inputs, tensors(y=["b", "t"])))


def one_name() -> onnx.ModelProto:
    """Whatever is open is called N."""
    nodes = [
        helper.make_node("ReduceMean", ["z"], ["m"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["x", "m"], ["y"]),
    ]
    inputs = tensors(x=["N", 4], z=["N", "N"])
    return as_model(graph(nodes, inputs, tensors(y=["N", 4])))


def products() -> onnx.ModelProto:
    """As ``one_name``, run whole."""
    nodes = [
        helper.make_node("Transpose", ["z"], ["zt"], perm=[1, 0]),
        helper.make_node("MatMul", ["g", "zt"], ["y"]),
    ]
    return whole(nodes, {"x": ["N", "N"], "z": ["N", "N"]}, ["N", "N"])


def first_300() -> onnx.ModelProto:
    """An extent that is 300 at all lengths that an import tries."""
    node = helper.make_node("Slice", ["g", "from", "to", "along"], ["y"])
    constants = {"from": np.array([0]), "to": np.array([300]), "along": np.array([1])}
    return whole([node], {"x": ["b", "n"]}, ["b", "m"], constants)


def another_number() -> onnx.ModelProto:
    """The file states an extent that is right for 512 columns only."""
    node = helper.make_node("Concat", ["g", "g"], ["y"], axis=1)
    return whole([node], {"x": ["b", "n"]}, ["b", 1024])


CASES = {
    "a mask of all rows": Case(
        mask_of_all_rows, [[(3, 5), (1, 5)], [(1, 5), (1, 5)], [(4, 9), (1, 9)]]
    ),
    "one name": Case(one_name, [[(2, 4), (2, 7)], [(3, 4), (3, 5)], [(3, 4), (3, 3)]]),
    "products": Case(products, [[(2, 7), (3, 7)], [(4, 4), (4, 4)], [(1, 4), (5, 4)]]),
    "the first 300": Case(first_300, [[(1, 5)], [(3, 5)], [(2, 400)], [(1, 301)]]),
    "another number": Case(another_number, [[(1, 5)], [(3, 512)], [(2, 400)]]),
}

REFUSED = Case(mask_of_all_rows, [[(3, 5), (2, 5)], [(3, 5), (1, 6)]])
"""ONNX Runtime refuses these, too."""
