"""The lowering table as rows of a document: what ``docs/onnx-operators.md`` shows of it."""

from __future__ import annotations

from onnx import defs

from braid.engine.onnx.families import TABLE
from braid.engine.onnx.lowering_table import NEWEST_OPSET, OLDEST_OPSET, Lowering
from braid.engine.onnx.prepare import EXPANDED

CONDITIONAL = "the condition must follow from shapes and from small inputs given in advance"


def opsets(entry: Lowering) -> tuple[int, int]:
    later = [
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name == entry.op_type and not schema.domain and schema.since_version > entry.last
    ]
    return max(entry.first, OLDEST_OPSET), min([*later, NEWEST_OPSET + 1]) - 1


def rows() -> dict[str, tuple[int, int, str]]:
    """Operator -> first and last operator set covered, and remarks."""
    covered = {entry.op_type: (*opsets(entry), entry.remarks) for entry in TABLE.values()}
    covered["If"] = (OLDEST_OPSET, NEWEST_OPSET, CONDITIONAL)
    for name in EXPANDED:
        first = min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == name)
        covered[name] = (first, NEWEST_OPSET, "expanded into the function ONNX defines it as")
    return covered
