"""The allow-list as a document: running this module prints ``docs/pt2-operators.md``."""

from __future__ import annotations

import sys
from collections import defaultdict

from braid.engine.pt2.families import TABLE
from braid.engine.pt2.families.symbols import DROPPED


def as_markdown() -> str:
    """The operators by name, with the overloads that are covered."""
    overloads: dict[str, list[str]] = defaultdict(list)
    for target in TABLE:
        name, _, overload = target.rpartition(".")
        overloads[name if target.startswith("aten.") else target].append(
            overload if target.startswith("aten.") else ""
        )
    lines = [
        "# Operators of `.pt2` files",
        "",
        "Written by `python -m braid.engine.pt2.operator_docs`; a test checks that it is current. "
        f"{len(TABLE)} overloads of {len(overloads)}",
        "operators, and their in-place forms (`aten.relu_`). Nothing else in a file is ever",
        "called; an argument that is not covered is refused by name, never ignored. Dropped, as",
        "assertions:",
        ", ".join(f"`{name}`" for name in sorted(DROPPED)) + ".",
        "",
        "| operator | overloads |",
        "| --- | --- |",
    ]
    lines += [
        f"| {name} | {', '.join(sorted(filter(None, found)))} |"
        for name, found in sorted(overloads.items())
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
