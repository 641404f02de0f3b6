"""The lowering table as a document: ``python -m engine.onnx.table`` prints it as Markdown."""

from __future__ import annotations

import sys

from onnx import defs

from engine.onnx.families import TABLE
from engine.onnx.prepare import EXPANDED
from engine.onnx.registry import NEWEST_OPSET, OLDEST_OPSET, Lowering

CONDITIONAL = "the condition must follow from shapes and from small inputs given in advance"


def opsets(entry: Lowering) -> tuple[int, int]:
    """First and last operator set whose form of the operator is covered."""
    later = [
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name == entry.op_type and not schema.domain and schema.since_version > entry.last
    ]
    return max(entry.first, OLDEST_OPSET), min([*later, NEWEST_OPSET + 1]) - 1


def as_markdown() -> str:
    """The table as docs/onnx-operators.md shows it."""
    lines = [
        "# ONNX operators",
        "",
        "Written by `python -m engine.onnx.table`; a test checks that it is current. "
        f"{len(TABLE) + len(EXPANDED) + 1} operators of",
        f"the default domain, operator sets {OLDEST_OPSET} to {NEWEST_OPSET}. "
        "An attribute, operand, output or element type that is not",
        "covered is refused by name, never ignored.",
        "",
        "| operator | operator sets | remarks |",
        "| --- | --- | --- |",
    ]
    rows = {entry.op_type: (*opsets(entry), entry.remarks) for entry in TABLE.values()}
    rows["If"] = (OLDEST_OPSET, NEWEST_OPSET, CONDITIONAL)
    for name in EXPANDED:
        first = min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == name)
        rows[name] = (first, NEWEST_OPSET, "expanded into the function ONNX defines it as")
    lines += [
        f"| {name} | {first} to {last} | {remarks} |"
        for name, (first, last, remarks) in sorted(rows.items())
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
