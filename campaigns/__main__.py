"""Run a campaign: ``python -m campaigns chaos --minutes 60 --seed 7 --out FILE.json``.

options ──> run of the campaign's module ──> result ──> a table, and FILE
                                               └── ``broken`` in it: the exit status is 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from benchmarks import environment
from tests.child_processes import kill_children_at_exit

CAMPAIGNS: Mapping[str, tuple[str, Sequence[str]]] = {
    "attack": ("campaigns.attack", ("seed", "minutes")),
    "chaos": ("campaigns.chaos.campaign", ("seed", "minutes")),
    "contest": ("campaigns.contest.campaign", ("seed",)),
    "exact": ("campaigns.exact.campaign", ("seed",)),
    "fuzz": ("campaigns.fuzz.campaign", ("seed", "minutes")),
    "mixed": ("campaigns.mixed", ("seed",)),
    "paused": ("campaigns.paused", ("seed",)),
    "soak": ("campaigns.soak.campaign", ("seed", "minutes")),
    "tenants": ("campaigns.tenants.campaign", ("seed", "minutes")),
}
"""Name -> module, which is loaded only when it runs, and the common options that it takes."""

HIDDEN = ("environment", "medians", "tracebacks")
"""Parts of a result that only FILE has."""


class Campaign(Protocol):
    """Module of a campaign."""

    def add_options(self, parser: argparse.ArgumentParser, /) -> None:
        """Add the options that only this campaign has."""

    def run(self, options: argparse.Namespace, /) -> dict[str, Any]:
        """Return what was seen, ready for JSON; ``broken`` holds what must not be."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one campaign; returns 1 if anything is broken, else 0."""
    kill_children_at_exit()
    parser = argparse.ArgumentParser(prog="python -m campaigns")
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    module, common = CAMPAIGNS[asked.campaign]
    campaign = cast(Campaign, import_module(module))
    options = _options(f"{parser.prog} {asked.campaign}", campaign, common, asked.options)
    given = {name: getattr(options, name) for name in common}
    print(asked.campaign, *(f"{name} {value}" for name, value in given.items()), flush=True)
    result = {
        "environment": environment.describe("grpcio", "onnx", "protobuf", "torch"),
        **given,
        **campaign.run(options),
    }
    print("| | |", "|---|---|", *lines(result), sep="\n")
    for text in result.get("tracebacks", {}).values():
        print("", f"Traceback{text}", sep="\n")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["broken"] else 0


def _options(
    prog: str, campaign: Campaign, common: Sequence[str], arguments: Sequence[str]
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description=campaign.__doc__)
    if "minutes" in common:
        parser.add_argument("--minutes", type=float, default=10.0)
    if "seed" in common:
        drawn = random.SystemRandom().randrange(1 << 30)
        parser.add_argument("--seed", type=int, default=drawn, help="default: drawn at random")
    parser.add_argument("--out", type=Path, help="write what was seen here, too (JSON)")
    campaign.add_options(parser)
    return parser.parse_args(arguments)


def lines(result: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Rows of a Markdown table; ``path`` names what ``result`` is a part of."""
    for name, value in result.items():
        if name in HIDDEN:
            continue
        if not isinstance(value, dict):
            yield f"| {path}{name} | {'none' if value == [] else value} |"
        elif any(isinstance(part, dict) for part in value.values()):
            yield from lines(value, f"{path}{name}: ")
        else:
            parts = [f"{key} {part}" for key, part in value.items() if key not in HIDDEN]
            yield f"| {path}{name} | {', '.join(parts) or 'none'} |"


if __name__ == "__main__":
    sys.exit(main())
