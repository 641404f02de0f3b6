"""docs/onnx-operators.md: what the table covers and how it does in onnx's own backend tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from braid.engine.onnx.lowering_table import NEWEST_OPSET, OLDEST_OPSET
from braid.engine.onnx.operator_docs import rows
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

_COUNTED = (Verdict.PASSED, Verdict.REFUSED, Verdict.FAILED, Verdict.WRONG)


def unexplained(results: Sequence[Result]) -> list[Result]:
    """Silently wrong results without an explanation."""
    return [r for r in results if r.verdict is Verdict.WRONG and r.name not in EXPLAINED]


def as_markdown(run: Run) -> str:
    """The document."""
    table = rows()
    lines = [
        "# ONNX operators",
        "",
        f"{len(table)} operators of the default domain, operator sets {OLDEST_OPSET} to "
        f"{NEWEST_OPSET}. An attribute, operand, output or element",
        "type that is not covered is refused by name, never ignored. Written by "
        "`make onnx-backend`, which runs the",
        "backend tests of the onnx package through the importer, the passes and the CPU executor; "
        "after a change of",
        "the table alone, `python -m tests.conformance --redraw` writes it from the kept results "
        "(`onnx-backend.json`).",
        "",
        "## Silently wrong",
        "",
        *_wrong(run.results),
        "",
        "## Results",
        "",
        f"With {run.versions}. *Refused*: at import, with a reason. *Failed*: an error while "
        "running, a crash or a hang.",
        "",
        "| tests | passed | refused | failed | wrong |",
        "| --- | --- | --- | --- | --- |",
        *_by_kind(run.results),
        "",
        "## By operator",
        "",
        "| operator | operator sets | passed | refused | failed | remarks |",
        "| --- | --- | --- | --- | --- | --- |",
        *_by_operator(run.results, table),
        "",
        "## Not passed",
        "",
        *_not_passed(run.results),
    ]
    return "\n".join(lines) + "\n"


def _wrong(results: Sequence[Result]) -> list[str]:
    wrong = [result for result in results if result.verdict is Verdict.WRONG]
    if not wrong:
        return ["None."]
    return [
        f"- `{r.name}` ({r.operator}): {r.reason}. {EXPLAINED.get(r.name, '**Not explained.**')}"
        for r in wrong
    ]


def _counts(results: Sequence[Result]) -> list[int]:
    count = Counter(result.verdict for result in results)
    return [count[verdict] for verdict in _COUNTED]


def _by_kind(results: Sequence[Result]) -> list[str]:
    groups = {kind: [r for r in results if r.kind == kind] for kind in KINDS}
    groups = {kind: group for kind, group in groups.items() if group} | {"**all**": [*results]}
    return [
        f"| {kind} | {' | '.join(map(str, _counts(group)))} |" for kind, group in groups.items()
    ]


def _by_operator(results: Sequence[Result], table: Mapping[str, tuple[int, int, str]]) -> list[str]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.operator].append(result)
    lines = []
    for name in sorted({*groups, *table} - {WHOLE}):
        first, last, remarks = table.get(name, (0, 0, "not in the table"))
        sets = f"{first} to {last}" if first else "–"
        passed, refused, failed, wrong = _counts(groups[name])
        lines.append(f"| {name} | {sets} | {passed} | {refused} | {failed + wrong} | {remarks} |")
    passed, refused, failed, wrong = _counts(groups[WHOLE])
    lines.append(f"| {WHOLE} | – | {passed} | {refused} | {failed + wrong} | whole models |")
    return lines


def _not_passed(results: Sequence[Result]) -> list[str]:
    """One line a reason, with how many cases it stopped."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        if result.verdict in (Verdict.REFUSED, Verdict.FAILED):
            reasons[result.verdict, result.operator].append(result.reason)
    return [
        f"- {operator}: {len(found)} {verdict}, e.g. {min(found, key=len)}"
        for (verdict, operator), found in sorted(reasons.items())
    ]
