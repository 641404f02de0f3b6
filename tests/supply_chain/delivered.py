"""Distributions that an installation of ``braid-serve`` brings, and their licences.

braid-serve[extras] ──requirements──> closure ──> name, version, licence ──> allow-list
"""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from deploy.sbom import licence, normalised

EXTRAS = ("openvino", "fleet", "tracing")
ALLOWED = Path(__file__).with_name("allowed.json")


def closure(name: str = "braid-serve", extras: Iterable[str] = EXTRAS) -> dict[str, Distribution]:
    """Return a distribution and all that it needs, by name; what is not installed is left out."""
    found: dict[str, Distribution] = {}
    pending = [Requirement(f"{name}[{','.join(extras)}]")]
    asked: set[tuple[str, frozenset[str]]] = set()
    while pending:
        wanted = pending.pop()
        key = normalised(wanted.name)
        if (key, frozenset(wanted.extras)) in asked:
            continue
        asked.add((key, frozenset(wanted.extras)))
        try:
            one = distribution(wanted.name)
        except PackageNotFoundError:
            continue
        found[key] = one
        for line in one.requires or ():
            needed = Requirement(line)
            given = wanted.extras or {""}
            if needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in given):
                continue
            pending.append(needed)
    return found


def allowed() -> Mapping[str, Mapping[str, str]]:
    """Return the allow-list: licences, packages and advisories, each with its reason."""
    read: dict[str, dict[str, str]] = json.loads(ALLOWED.read_text())
    return read


def unlicensed(found: Mapping[str, Distribution]) -> list[str]:
    """Return lines about distributions whose licence is not on the allow-list."""
    lists = allowed()
    lines = []
    for name, one in sorted(found.items()):
        stated = licence(one)
        if stated not in lists["licences"] and name not in lists["packages"]:
            lines.append(f"{name} {one.version}: {stated or 'no licence stated'}")
    return lines
