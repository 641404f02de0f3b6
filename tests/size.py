"""Lines of Python by room, beside the budget in tests/size.toml: ``python -m tests.size``.

Neither generated code nor links are counted. A room over its budget fails, or one without.
"""

import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

ROOMS = (
    *("core", "scheduler", "charts", "engine", "server", "client"),
    *("compiler", "library", "braid"),
)

Lines = Mapping[str, Mapping[str, int]]
"""Lines of ``product`` and ``tests`` by room."""


def lines_of(root: Path) -> dict[str, dict[str, int]]:
    """Count lines of the rooms of a checkout; tests outside folders are of the room ``tests``."""
    product = {room: sum(map(_lines, (root / room).rglob("*.py"))) for room in ROOMS}
    tests: Counter[str] = Counter()
    for path in (root / "tests").rglob("*.py"):
        room, *inner = path.relative_to(root / "tests").parts
        tests[room if inner else "tests"] += _lines(path)
    return {"product": product, "tests": dict(sorted(tests.items()))}


def _lines(path: Path) -> int:
    return 0 if path.is_symlink() or path.stem.endswith("_pb2") else path.read_bytes().count(b"\n")


def excesses(lines: Lines, budget: Lines) -> list[str]:
    """A line for each room that is over its budget."""
    return [
        f"{kind} {room}: {count:,} lines, {count - budget.get(kind, {}).get(room, 0):,} over its "
        "budget in tests/size.toml; remove as many, or raise it with a record in docs/decisions "
        "that names the gain"
        for kind, rooms in lines.items()
        for room, count in rooms.items()
        if count > budget.get(kind, {}).get(room, 0)
    ]


def table(lines: Lines, budget: Lines) -> str:
    rows = []
    for kind, rooms in lines.items():
        limits = budget.get(kind, {})
        rows += [f"{kind:8} {r:14} {n:7,} of {limits.get(r, 0):7,}" for r, n in rooms.items()]
        total = f"{sum(rooms.values()):7,} of {sum(limits.values()):7,}"
        rows.append(f"{kind:8} {'together':14} {total}")
    return "\n".join(rows)


def main(root: Path = ROOT) -> int:
    lines = lines_of(root)
    budget = tomllib.loads((root / "tests/size.toml").read_text())
    print(table(lines, budget))
    if over := excesses(lines, budget):
        print("\n".join(over), file=sys.stderr)
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
