"""Texts of the console's values: durations, errors, states, names of plans."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from braid.core.measurement import spread_text
from braid.server.store.records import JobStatus, ModelStatus

UNKNOWN = "–"


def duration(us: float | None) -> str:
    if us is None:
        return UNKNOWN
    if us < 1000:
        return f"{us:.0f} µs"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def latency(us: float | None, spread: float | None) -> str:
    return duration(us) if us is None else f"{duration(us)} ({spread_text(spread, UNKNOWN)})"


def rate(per_s: float) -> str:
    """Return a rate; a few events in a minute are not 0.0."""
    return "under 0.1" if 0.0 < per_s < 0.05 else f"{per_s:.1f}"


def error(relative: float | None) -> str:
    """Return an error of outputs, relative to the largest element."""
    return UNKNOWN if relative is None else f"{relative:.1e}"


def left(seconds: float) -> str:
    """Return the time until a job ends; empty while it is unknown."""
    if seconds < 0:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def utc(unix: float) -> datetime:
    return datetime.fromtimestamp(unix, UTC)


@dataclass(frozen=True, slots=True)
class State:
    """State as shown: a mark and a word; never colour alone."""

    word: str
    mark: str = "◐"  # something goes on
    kind: str = ""  # "good" | "bad" | ""


_ENDED = {
    **dict.fromkeys(("serving", "ready"), ("●", "good")),
    **dict.fromkeys(("failed", "damaged", "lost"), ("✕", "bad")),
    **dict.fromkeys(("unscheduled", "unloaded"), ("○", "")),
    "cancelled": ("–", ""),
}


def state(of: JobStatus | ModelStatus | str) -> State:
    word = of if isinstance(of, str) else of.word
    return State(word, *_ENDED.get(word, ()))


@dataclass(frozen=True, slots=True)
class PlanName:
    """Name of a plan in two parts: what tells it from its neighbours, and the rest."""

    short: str  # "lazy-ios(join=group)"
    options: str = ""  # "r=3, s=8, gap=0.01"


def plan_names(names: Iterable[str]) -> dict[str, PlanName]:
    """Return plans by their names; options that all plans of one planner share are the rest."""
    parsed = {name: _parsed(name) for name in names}
    shared: dict[str, set[str]] = {}
    for planner, options in parsed.values():
        shared[planner] = shared.get(planner, set(options)) & set(options)
    shown = {}
    for name, (planner, options) in parsed.items():
        own = ",".join(option for option in options if option not in shared[planner])
        rest = ", ".join(option for option in options if option in shared[planner])
        shown[name] = PlanName(f"{planner}({own})" if own else planner, rest)
    return shown


def _parsed(name: str) -> tuple[str, list[str]]:
    """Return the planner and the options of ``ios(r=3,s=8)``."""
    planner, _, options = name.partition("(")
    return planner, options.removesuffix(")").split(",") if options else []
