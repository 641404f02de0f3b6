"""HTML from Python calls: text is escaped unless it was made here.

h("p", "Hello ", h("a", name, href=url), class_="note")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Html(str):
    """Text that is HTML and is not escaped."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def h(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return one element. Attributes of None or False are left out; ``_`` becomes ``-``."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(f" {name}" if value is True else f' {name}="{escape(str(value))}"')
    parts.append(">")
    if tag not in VOID:
        parts += [text(children), f"</{tag}>"]
    return Html("".join(parts))


def text(child: Child) -> Html:
    """Return children as HTML."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return Html(escape(str(child)))
    return Html("".join(map(text, child)))


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    right: Sequence[str] = (),
    caption: str = "",
    empty: str = "nothing yet",
) -> Html:
    """Return a table; columns in ``right`` hold numbers. A row's first cell is its head."""
    kinds = ["number" if column in right else None for column in columns]
    body = [
        h("tr", [
            h("td" if index else "th", cell, class_=kinds[index], scope=None if index else "row")
            for index, cell in enumerate(row)
        ])
        for row in rows
    ]  # fmt: skip
    if not body:
        return h("p", empty, class_="empty")
    heads = [
        h("th", column, scope="col", class_=kind)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    inner = h(
        "table",
        h("caption", caption) if caption else None,
        h("thead", h("tr", heads)),
        h("tbody", body),
    )
    return h("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption or None)
