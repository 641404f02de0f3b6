"""Verdicts on cases; JSON beside the document that shows them has those that did not pass."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests import ROOT

KEPT = ROOT / "docs/onnx-backend.json"


class Verdict(StrEnum):
    PASSED = "passed"  # on the kinds of the table
    WHOLE = "whole"  # passed, run whole by ONNX Runtime; the reason is against the table
    WRONG = "wrong"  # silently: other numbers than onnx expects
    REFUSED = "refused"  # at import or specialisation, with a reason
    FAILED = "failed"  # while running, or the process died or hung


@dataclass(frozen=True)
class Result:
    name: str
    kind: str
    operator: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """Results of one run and what they were made with."""

    versions: str
    passed: Mapping[str, int]  # cases of each kind
    others: Sequence[Result]


def run_of(versions: str, results: Sequence[Result]) -> Run:
    passed = Counter(result.kind for result in results if result.verdict is Verdict.PASSED)
    return Run(versions, passed, [r for r in results if r.verdict is not Verdict.PASSED])


def write_run(run: Run, path: Path = KEPT) -> None:
    """Keep a run; one line a case, so that changes show in a diff."""
    head = f'"versions": {json.dumps(run.versions)}, "passed": {json.dumps(run.passed)}'
    lines = ",\n".join(json.dumps(asdict(result)) for result in run.others)
    path.write_text(f'{{{head}, "others": [\n{lines}\n]}}\n')


def read_run(path: Path = KEPT) -> Run:
    document = json.loads(path.read_text())
    others = [
        Result(**{**entry, "verdict": Verdict(entry["verdict"])}) for entry in document["others"]
    ]
    return Run(document["versions"], document["passed"], others)
