"""Verdicts on cases, kept as JSON beside the document they are shown in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from tests import ROOT

KEPT = ROOT / "docs/onnx-backend.json"


class Verdict(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    WRONG = "wrong"  # silently: other numbers than onnx expects
    REFUSED = "refused"  # at import or specialisation, with a reason
    FAILED = "failed"  # while running, or the process died or hung


@dataclass(frozen=True)
class Result:
    """The verdict on one case."""

    name: str
    kind: str
    operator: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Run:
    """All results of one run and what they were made with."""

    versions: str
    results: Sequence[Result]


def write_run(run: Run, path: Path = KEPT) -> None:
    """Keep a run; one line a case, so that changes show in a diff."""
    lines = ",\n".join(json.dumps(asdict(result)) for result in run.results)
    path.write_text(f'{{"versions": {json.dumps(run.versions)}, "results": [\n{lines}\n]}}\n')


def read_run(path: Path = KEPT) -> Run:
    document = json.loads(path.read_text())
    results = [
        Result(**{**entry, "verdict": Verdict(entry["verdict"])}) for entry in document["results"]
    ]
    return Run(document["versions"], results)
