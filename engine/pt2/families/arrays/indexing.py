"""Lowering of operators that pick and place elements by index."""

from __future__ import annotations

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Tensor
from braid.engine.pt2.lowering_table import lowers


@lowers("aten.embedding.default")
def embedding(call: CallArguments, to: Builder) -> None:
    call.without_effect("padding_idx", "scale_grad_by_freq", "sparse")
    operands = [call.tensor("weight"), call.tensor("indices")]
    to.emit("braid.gather", operands, call.output, axis=0, wrap=False)


@lowers("aten.index_select.default")
def index_select(call: CallArguments, to: Builder) -> None:
    operands = [call.tensor("self"), call.tensor("index")]
    to.emit("braid.gather", operands, call.output, axis=call.integer("dim"), wrap=False)


@lowers("aten.gather.default")
def gather(call: CallArguments, to: Builder) -> None:
    call.without_effect("sparse_grad")
    operands = [call.tensor("self"), call.tensor("index")]
    axis = call.axis("dim", call.rank())
    shapes = zip(call.shape_of("self"), call.shape_of("index"), strict=True)
    if any(i != axis and a != b for i, (a, b) in enumerate(shapes)):
        raise UnsupportedUse("indices that do not cover the tensor")
    to.emit("braid.gather_elements", operands, call.output, axis=axis, wrap=False)


@lowers("aten.index.Tensor")
def index(call: CallArguments, to: Builder) -> None:
    """Pick slices by one tensor of integer indices."""
    given = call.argument("indices")
    places = (
        [(i, g) for i, g in enumerate(given) if g is not None] if isinstance(given, list) else []
    )
    if len(places) != 1 or not isinstance(places[0][1], Tensor):
        raise UnsupportedUse("indexing with several tensors")
    axis = places[0][0]
    value = call.tensors("indices")[axis]
    if call.dtype_of_name(places[0][1].name) in ("BOOL", "UINT8"):
        raise UnsupportedUse("indexing by a mask: the shape would depend on data")
    to.emit("braid.gather", [call.tensor("self"), value], call.output, axis=axis, wrap=True)
