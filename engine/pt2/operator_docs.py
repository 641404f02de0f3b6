"""The allow-list as a document: running this module prints ``docs/pt2-operators.md``."""

from __future__ import annotations

import sys
import textwrap
from collections import defaultdict
from collections.abc import Sequence

from braid.engine.pt2.families import TABLE
from braid.engine.pt2.families.symbols import DROPPED


def as_markdown() -> str:
    """The operators by the overloads that are covered."""
    overloads: dict[str, list[str]] = defaultdict(list)
    for target in TABLE:
        name, _, overload = target.rpartition(".")
        if name.startswith("aten."):
            overloads[name.removeprefix("aten.")].append(overload)
        else:
            overloads[target].append("")
    groups: dict[str, list[str]] = defaultdict(list)
    for name, covered in sorted(overloads.items()):
        groups[", ".join(sorted(covered))].append(name)
    lines = [
        "# Operators of `.pt2` files",
        "",
        *_wrapped(
            f"{len(TABLE)} overloads of {len(overloads)} operators are covered, and their in-place "
            "forms (`aten.relu_`). Nothing else in a file is ever called. An argument that is not "
            "covered is refused by name, never ignored."
        ),
        "",
        *_wrapped(
            "`python -m braid.engine.pt2.operator_docs` writes this page; a test checks that it is "
            "current."
        ),
        "",
        "| overloads | operators of `aten` |",
        "| --- | --- |",
        *(f"| {covered} | `{', '.join(names)}` |" for covered, names in groups.items() if covered),
        "",
        *_wrapped("Of Python, for computed extents: " + _listed(groups[""])),
        "",
        *_wrapped("Dropped, as assertions: " + _listed(sorted(DROPPED))),
    ]
    return "\n".join(lines) + "\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
