"""Models whose files say less of their extents, or other things, than their graphs take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tests.models.graphs import parsed

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


def mask_of_all_rows() -> onnx.ModelProto:
    return parsed(
        "(float[b, t] x, float[1, t] mask) => (float[b, t] y) { s = Add(x, mask)  y = Softmax(s) }"
    )


def one_name() -> onnx.ModelProto:
    """Whatever is open is called N."""
    return parsed(
        """(float[N, 4] x, float[N, N] z) => (float[N, 4] y)
        { m = ReduceMean<axes=[1], keepdims=1>(z)  y = Mul(x, m) }"""
    )


def products() -> onnx.ModelProto:
    """As ``one_name``, run whole: it has an operator of ONNX Runtime's own."""
    return parsed(
        """(float[N, N] x, float[N, N] z) => (float[N, N] y) {
          g = com.microsoft.QuickGelu(x)  t = Transpose<perm=[1, 0]>(z)  y = MatMul(g, t) }"""
    )


def first_300() -> onnx.ModelProto:
    """An extent that is 300 at all lengths that an import tries."""
    return parsed(
        """(float[b, n] x) => (float[b, m] y)
        { g = com.microsoft.QuickGelu(x)  y = Slice(g, begin, end, along) }""",
        {"begin": [0], "end": [300], "along": [1]},
    )


def another_number() -> onnx.ModelProto:
    """The file states an extent that is right for 512 columns only."""
    return parsed(
        """(float[b, n] x) => (float[b, 1024] y)
        { g = com.microsoft.QuickGelu(x)  y = Concat<axis=1>(g, g) }"""
    )


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
