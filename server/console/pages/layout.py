"""The frame of every page: navigation, title, what signs in and out; and small parts of pages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from braid.core.measurement import spread_text
from braid.server.console.pages.html import Child, Html, h, text

BASE = "/console/"
PAGES = (("Models", BASE), ("Jobs", f"{BASE}jobs"), ("Devices", f"{BASE}devices"))


@dataclass(frozen=True, slots=True)
class Page:
    """Title and content of a page, before it is framed."""

    title: str
    body: Html
    here: str = ""  # the navigation's entry
    is_live: bool = False  # the script asks for it again every moment


def framed(page: Page, *, is_admin: bool) -> bytes:
    """Return a whole document."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        h("title", f"{page.title} · Braid"),
        h("link", rel="stylesheet", href=f"{BASE}console.css"),
        h("link", rel="icon", href=f"{BASE}icon.svg", type="image/svg+xml"),
        h("script", src=f"{BASE}console.js", defer=True),
    )
    links = [
        h("a", name, href=href, aria_current="page" if name == page.here else None)
        for name, href in PAGES
    ]
    who = (
        h("form", h("button", "Sign out"), method="post", action=f"{BASE}sign-out")
        if is_admin
        else h("a", "Sign in", href=f"{BASE}sign-in")
    )
    body = h(
        "body",
        h("a", "Skip to content", href="#main", class_="skip"),
        h("header", h("a", "braid", href=BASE, class_="brand"), h("nav", links), who),
        h("main", h("h1", page.title), page.body, id="main", tabindex=-1),
        data_live="1" if page.is_live else None,
    )
    return ("<!doctype html>\n" + h("html", head, body, lang="en")).encode()


def live(name: str, *children: Child) -> Html:
    """Return a part that the script replaces while the page is open."""
    return h("div", children, id=f"live-{name}", class_="live")


def url(*parts: str | int, **query: str | int | None) -> str:
    """Return a path below the console, its parts escaped."""
    path = BASE + "/".join(quote(str(part), safe="") for part in parts)
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def action(label: str, target: str, *, confirm: str = "", danger: bool = False) -> Html:
    """Return a button for a change; shown to signed-in users only."""
    button = h("button", label, class_="danger" if danger else None)
    return h("form", button, method="post", action=target, data_confirm=confirm or None)


def state(word: str) -> Html:
    """Return a state as a word with a mark; never colour alone."""
    low = word.lower()
    marks = {
        "serving": "●",
        "ready": "●",
        "failed": "✕",
        "unscheduled": "○",
        "cancelled": "–",
        "unloaded": "○",
    }
    return h("span", h("span", marks.get(low, "◐"), aria_hidden="true"), f" {low}",
             class_=f"state {low}")  # fmt: skip


def duration(us: float | None) -> str:
    """Return a duration, given in microseconds, with a unit that suits it."""
    if us is None:
        return "–"
    if us < 1000:
        return f"{us:.0f} µs"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def latency(us: float | None, spread: float | None) -> str:
    """Return a latency, given in microseconds, and the spread of its runs."""
    return duration(us) if us is None else f"{duration(us)} ({spread_text(spread, '–')})"


def moment(unix: float) -> Html:
    """Return a time, given in seconds since 1970, as UTC."""
    when = datetime.fromtimestamp(unix, UTC)
    return h("time", when.strftime("%Y-%m-%d %H:%M:%S"), datetime=when.isoformat())


def pairs(*items: tuple[str, Child]) -> Html:
    """Return a list of names with their values."""
    return h("dl", [[h("dt", name), h("dd", value)] for name, value in items if value != ""])


def tiles(*items: tuple[str, Child]) -> Html:
    """Return a few large numbers with their names."""
    return h("ul", [h("li", h("strong", text(v)), h("span", n)) for n, v in items], class_="tiles")
