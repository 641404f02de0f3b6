"""docs/onnx-operators.md: what the table covers and how it does in onnx's own backend tests."""

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from onnx import defs

from braid.engine.onnx.families import TABLE
from braid.engine.onnx.lowering_table import NEWEST_OPSET, OLDEST_OPSET
from braid.engine.onnx.prepare import EXPANDED
from tests import ROOT
from tests.conformance.cases import KINDS, WHOLE
from tests.conformance.results import Result, Run, Verdict

DOCUMENT = ROOT / "docs/onnx-operators.md"

_ALIGNED = (
    "The reference divides by a broken output extent (2.4 - 1); ONNX Runtime and torch, from which "
    "such models come, by the whole one (2 - 1). So does Braid."
)
EXPLAINED: Mapping[str, str] = {
    "test_resize_downsample_scales_linear_align_corners": _ALIGNED,
    "test_resize_downsample_scales_cubic_align_corners": _ALIGNED,
}
"""Cases that give other numbers than onnx expects, on purpose, and why."""

Table = Mapping[str, tuple[int, int, str]]  # operator -> first and last set, remark
OTHER = (Verdict.WHOLE, Verdict.REFUSED, Verdict.FAILED, Verdict.WRONG)


def unexplained(results: Sequence[Result]) -> list[Result]:
    """Silently wrong results without an explanation."""
    return [r for r in results if r.verdict is Verdict.WRONG and r.name not in EXPLAINED]


def as_markdown(run: Run) -> str:
    table = _rows()
    lines = [
        "# ONNX operators",
        "",
        *_wrapped(
            f"{len(table)} operators of the default domain are covered, in operator sets "
            f"{OLDEST_OPSET} to {NEWEST_OPSET}. An attribute, operand, output or element type that "
            "is not covered is named, never ignored, and its model runs whole in ONNX Runtime "
            "where that is safe ([importing](importing.md))."
        ),
        "",
        *_wrapped(
            "`make onnx-backend` writes this page: it runs the backend tests of the onnx package "
            "through the importer, the passes and the CPU executor, else whole, and keeps what did "
            "not pass in parts in `onnx-backend.json`. `python -m tests.conformance --redraw` "
            "writes it from these."
        ),
        "",
        "## Covered",
        "",
        f"| from set | operators (to set {NEWEST_OPSET}, unless another is named) |",
        "| --- | --- |",
        *_by_first_set(table),
        "",
        "| remark | operators |",
        "| --- | --- |",
        *_by_remark(table),
        "",
        "## Not covered",
        "",
        *_wrapped(f"{', '.join(_uncovered(run.others, table))}."),
        "",
        "## Results",
        "",
        *_wrapped(
            f"With {run.versions}. *Passed*: on operators of the table. *Whole*: passed in ONNX "
            "Runtime. *Refused*: by the table, with a reason, and not passed in ONNX Runtime. "
            "*Failed*: an error while running, a crash or a hang. *Wrong*: other numbers than onnx "
            "expects. `onnx-backend.json` has the reasons."
        ),
        "",
        "| tests | passed | whole | refused | failed | wrong |",
        "| --- | --- | --- | --- | --- | --- |",
        *_by_kind(run),
        "",
        "Wrong:",
        "",
        *_wrong(run.others),
    ]
    return "\n".join(lines) + "\n"


def _rows() -> dict[str, tuple[int, int, str]]:
    """Operator -> first and last operator set covered, and remarks."""
    since: dict[str, list[int]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            since[schema.name].append(schema.since_version)
    what = "the condition must follow from shapes and from small inputs given in advance"
    covered = {"If": (OLDEST_OPSET, NEWEST_OPSET, what)}
    for entry in TABLE.values():
        later = [version for version in since[entry.op_type] if version > entry.last]
        last = min([*later, NEWEST_OPSET + 1]) - 1
        covered[entry.op_type] = max(entry.first, OLDEST_OPSET), last, entry.remarks
    what = "expanded into the function ONNX defines it as"
    return covered | {name: (min(since[name]), NEWEST_OPSET, what) for name in EXPANDED}


def _wrapped(text: str, hanging: str = "") -> list[str]:
    return textwrap.wrap(
        text, 100, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def _wrong(results: Sequence[Result]) -> list[str]:
    by_reason: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.verdict is Verdict.WRONG:
            by_reason[EXPLAINED.get(result.name, "**Not explained.**")].append(result)
    lines = []
    for reason, group in by_reason.items():
        lines += _wrapped(
            f"- {', '.join(f'`{r.name}` ({r.operator}): {r.reason}' for r in group)}. {reason}",
            "  ",
        )
    return lines or ["None."]


def _by_kind(run: Run) -> list[str]:
    verdicts = Counter((result.kind, result.verdict) for result in run.others)
    counts = {
        kind: [run.passed.get(kind, 0), *(verdicts[kind, verdict] for verdict in OTHER)]
        for kind in KINDS
    }
    counts = {kind: count for kind, count in counts.items() if any(count)}
    counts["**all**"] = list(map(sum, zip(*counts.values(), strict=True)))
    return [f"| {kind} | {' | '.join(map(str, count))} |" for kind, count in counts.items()]


def _by_first_set(table: Table) -> list[str]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, (first, last, _) in sorted(table.items()):
        names[first].append(name if last == NEWEST_OPSET else f"{name} (to {last})")
    return [f"| {first} | {', '.join(group)} |" for first, group in sorted(names.items())]


def _by_remark(table: Table) -> list[str]:
    names: dict[str, list[str]] = defaultdict(list)
    for name, (_, _, remark) in sorted(table.items()):
        if remark:
            names[remark].append(name)
    return [f"| {remark} | {', '.join(group)} |" for remark, group in sorted(names.items())]


def _uncovered(results: Sequence[Result], table: Table) -> Iterable[str]:
    return sorted({result.operator for result in results} - {*table, WHOLE})
