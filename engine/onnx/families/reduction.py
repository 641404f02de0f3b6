"""Lowering of reductions, running sums, positions of extremes."""

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.lowering_table import Maybe, computed_since, lowers, lowers_to
from braid.engine.onnx.node import OnnxNode

# Name, last form, the form from which the axes are an operand, kind.
_REDUCTIONS = (
    ("ReduceL1", 18, 18, "braid.l1_norm"),
    ("ReduceL2", 18, 18, "braid.l2_norm"),
    ("ReduceLogSum", 28, 18, "braid.log_sum"),
    ("ReduceLogSumExp", 28, 18, "aten.logsumexp"),
    ("ReduceMax", 20, 18, "aten.amax"),
    ("ReduceMean", 18, 18, "aten.mean"),
    ("ReduceMin", 20, 18, "aten.amin"),
    ("ReduceProd", 18, 18, "braid.prod"),
    ("ReduceSum", 13, 13, "aten.sum"),
    ("ReduceSumSquare", 18, 18, "braid.sum_square"),
)


def _enter_reduction(op_type: str, last: int, operand_from: int, kind: str) -> None:
    @lowers(op_type, 1, last, "axes may be computed")
    def reduction(node: OnnxNode, to: Builder) -> None:
        host, attributes = computed_since(node, operand_from, Maybe(1), dims=("axes", []))
        if host and node.flag("noop_with_empty_axes"):
            attributes = {"noop": True} if host["dims"] else {"noop": True, "dims": []}
        keepdim = node.flag("keepdims", True)
        to.emit(kind, [node.operand(0)], node.output, host, keepdim=keepdim, **attributes)


for _entry in _REDUCTIONS:
    _enter_reduction(*_entry)


for _name in ("ArgMax", "ArgMin"):
    lowers_to(
        *(f"braid.{_name.lower()}", _name, 1, 13),
        dim=("axis", 0),
        keepdim=("keepdims", True),
        select_last=("select_last_index", False),
    )


for _name, _first, _last in (("CumSum", 11, 14), ("CumProd", 26, 26)):
    lowers_to(
        *(f"braid.{_name.lower()}", _name, _first, _last, 1, {"dim": 1}),
        exclusive=("exclusive", False),
        reverse=("reverse", False),
    )


@lowers("TopK", 1, 24, "equal values come in order of position")
def topk(node: OnnxNode, to: Builder) -> None:
    host, attributes = computed_since(node, 10, 1, k=("k", int))
    if len(node.outputs) > 2:
        raise UnsupportedUse("more than two outputs")
    node.without_effect("sorted")  # a sorted answer is a legal unsorted one
    to.emit(
        "braid.topk",
        [node.operand(0)],
        (*node.outputs, "")[:2],
        host=host,
        dim=node.integer("axis", -1),
        largest=node.flag("largest", True),
        **attributes,
    )
