"""Picking and placing by index."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.document import Tensor
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.embedding.default")
def embedding(use: Use, to: Builder) -> None:
    """Rows of a table."""
    use.without_effect("padding_idx", "scale_grad_by_freq", "sparse")
    operands = [use.tensor("weight"), use.tensor("indices")]
    to.emit("braid.gather", operands, use.output, axis=0, wrap=True)


@lowers("aten.index_select.default")
def index_select(use: Use, to: Builder) -> None:
    """Slices by index."""
    operands = [use.tensor("self"), use.tensor("index")]
    to.emit("braid.gather", operands, use.output, axis=use.integer("dim"), wrap=False)


@lowers("aten.gather.default")
def gather(use: Use, to: Builder) -> None:
    """Elements by index along an axis."""
    use.without_effect("sparse_grad")
    operands = [use.tensor("self"), use.tensor("index")]
    axis = use.axis("dim", use.rank())
    shapes = zip(use.shape_of("self"), use.shape_of("index"), strict=True)
    if any(i != axis and a != b for i, (a, b) in enumerate(shapes)):
        raise UnsupportedUse("indices that do not cover the tensor")
    to.emit("braid.gather_elements", operands, use.output, axis=axis)


@lowers("aten.index.Tensor")
def index(use: Use, to: Builder) -> None:
    """Slices by one tensor of integer indices."""
    given = use.argument("indices")
    places = (
        [(i, g) for i, g in enumerate(given) if g is not None] if isinstance(given, list) else []
    )
    if len(places) != 1 or not isinstance(places[0][1], Tensor):
        raise UnsupportedUse("indexing with several tensors")
    axis = places[0][0]
    value = use.tensors("indices")[axis]
    if use.dtype_of_name(places[0][1].name) in ("BOOL", "UINT8"):
        raise UnsupportedUse("indexing by a mask: the shape would depend on data")
    to.emit("braid.gather", [use.tensor("self"), value], use.output, axis=axis, wrap=True)
