"""Report files, bars, and the command line of a benchmark that consists of named cases.

    python -m MODULE CASE ... --json FILE

Files are complete whenever the machine is taken away.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import REPOSITORY, core_distance

LOCAL = REPOSITORY / "benchmarks" / "results" / "local"
"""Results that git ignores."""


def parser_of(module: str, header: str | None) -> argparse.ArgumentParser:
    """Return a parser of ``python -m module`` that shows the module's header as its help."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=header,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def numbers(text: str) -> list[int]:
    return [int(part) for part in names(text)]


def fill(options: argparse.Namespace, values: Mapping[str, Any]) -> None:
    """Give options that were not given their values."""
    for name, value in values.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def refuse_unknown(
    parser: argparse.ArgumentParser, kind: str, given: Iterable[str], known: Collection[str]
) -> None:
    """End the program with a message if there are names of a kind that are not known."""
    if unknown := sorted(set(given) - set(known)):
        parser.error(f"no {kind} {', '.join(unknown)}; there are {', '.join(known)}")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` % of ``values`` do not exceed; NaN if empty."""
    if not values:
        return math.nan
    rank = -(-len(values) * percent // 100)
    return sorted(values)[max(0, int(rank) - 1)]


def cases_parser(module: str, cases: Collection[str]) -> argparse.ArgumentParser:
    """Return a parser of ``cases``, of which it wants one at least, and ``json``."""

    def case_name(name: str) -> str:
        if name not in cases:
            raise argparse.ArgumentTypeError(f"unknown: {name}; known are {', '.join(cases)}")
        return name

    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("cases", type=case_name, metavar="CASE", help=", ".join(cases), nargs="+")
    parser.add_argument("--json", type=Path, help="write all figures here (JSON)")
    return parser


def write_report(file: Path | None, report: Any) -> None:
    """Write a report as JSON, its folder as well; do nothing without a file.

    Where the environment of its run is in it, the distance of the cores at its end is added.
    """
    if file is not None:
        if isinstance(report, Mapping) and isinstance(about := report.get("environment"), Mapping):
            at_end = {**about, "core_distance_at_end": core_distance()}
            report = {**report, "environment": at_end}
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(report, indent=1) + "\n")


def replace_text(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
