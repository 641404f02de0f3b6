"""HTML of the console's pages: a template, filled with plain data.

Everything that a template prints is escaped, but for pictures made by ``braid.charts``; a name
that a page does not give is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from braid.core.measurement import rival_text, side_by_side_text, size_text, speed_text
from braid.core.quantisation import quantisation_text
from braid.core.runtimes import plan_text
from braid.core.tensor import guess_text
from braid.server.console import formats

if TYPE_CHECKING:
    from jinja2 import Environment

BASE = "/console/"
NAVIGATION = (("Models", BASE), ("Jobs", f"{BASE}jobs"), ("Devices", f"{BASE}devices"))

SLICE_SECONDS = 0.002
"""Time after which a page that is being made lets the event loop do something else."""


@dataclass(frozen=True, slots=True)
class Page:
    """Content of a page, before it is HTML."""

    template: str  # file below templates/
    title: str
    facts: Mapping[str, object]  # the template's variables
    here: str = ""  # the navigation's entry
    is_live: bool = False  # the script asks for it again every moment


class Renderer:
    """The templates. Belongs to the event loop, which also serves requests."""

    def __init__(self) -> None:
        self._is_compiled = False

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # with the first page

        environment = Environment(
            loader=PackageLoader("braid.server.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.globals |= {"url": url, "navigation": NAVIGATION}
        environment.filters |= {
            "duration": formats.duration,
            "latency": formats.latency,
            "error": formats.error,
            "size": size_text,
            "plan": plan_text,
            "left": formats.left,
            "utc": formats.utc,
            "state": formats.state,
            "speed": lambda speed: speed_text(speed, "–"),
            "side_by_side": lambda runs: side_by_side_text(runs, "–"),
            "quantisation": quantisation_text,
            "guess": guess_text,
            "rival": lambda best: "–" if best is None else rival_text(best.ratio, best.name),
        }
        return environment

    def compile(self) -> None:
        for name in self._environment.list_templates(["html"]):
            self._environment.get_template(name)
        self._is_compiled = True

    async def html(self, page: Page, *, is_admin: bool) -> bytes:
        """Return a whole document; other work of the event loop runs in between."""
        if not self._is_compiled:
            await asyncio.to_thread(self.compile)
        template = self._environment.get_template(page.template)
        pieces = template.generate(
            page.facts, title=page.title, here=page.here, is_live=page.is_live, is_admin=is_admin
        )
        written: list[str] = []
        pause_at = perf_counter() + SLICE_SECONDS
        for piece in pieces:
            written.append(piece)
            if perf_counter() >= pause_at:
                await asyncio.sleep(0)
                pause_at = perf_counter() + SLICE_SECONDS
        return "".join(written).encode()


def url(*parts: str | int, **query: str | int | None) -> str:
    """Return a path below the console, its parts escaped."""
    path = BASE + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
