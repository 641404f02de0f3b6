"""Options of a planner, with one canonical text that names them in cache keys."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Literal

from braid.core.errors import InvalidRequest
from braid.core.plan import MAX_STREAMS

PORTFOLIO = "portfolio"

PLANNERS = (
    "sequential",
    "greedy",
    "rammer",
    "ios-merge",
    "ios-parallel",
    "ios",
    "lazy-ios",
    "lios",
    "opara",
    "nimble",
    PORTFOLIO,  # all of them, see scheduler/portfolio.py
)

SERVING_GAP = 0.01
SERVING_BUDGET_S = 15.0

Join = Literal["stage", "group", "unit"]
JOINS: tuple[Join, ...] = ("stage", "group", "unit")


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """A planner and its limits. Hashable; equal options give equal plans on equal latencies."""

    planner: str = PORTFOLIO
    max_group_ops: int | None = 3  # r: units in one group; None = no limit
    max_groups: int | None = 8  # s: groups in one stage; None = no limit
    single_root: bool = False  # groups with one source only, as in the code of the IOS authors
    max_block_ops: int | None = 40  # larger blocks are split; None = the graph is one block
    max_streams: int = MAX_STREAMS
    join: Join = "stage"  # what waits for what between stages, see scheduler/lowering.py
    gap: float = 0.0  # lazy-ios stops when it has proved to be this close to the optimum
    time_budget_s: float | None = None  # lazy-ios stops after this time with the gap it has proved

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InvalidRequest(f"no planner {self.planner!r}; there are: {', '.join(PLANNERS)}")
        for limit in (self.max_group_ops, self.max_groups, self.max_block_ops):
            if limit is not None and limit < 1:
                raise InvalidRequest("the limits of a planner must be at least 1")
        if self.join not in JOINS:
            raise InvalidRequest(f"stages join by {', '.join(JOINS)}, not {self.join!r}")
        if not 1 <= self.max_streams <= MAX_STREAMS:
            raise InvalidRequest(f"a plan has 1 to {MAX_STREAMS} streams, not {self.max_streams}")
        if not 0 <= self.gap < float("inf"):
            raise InvalidRequest("the gap of a planner is a fraction, 0.01 for 1 %")
        if self.time_budget_s is not None and not self.time_budget_s > 0:
            raise InvalidRequest("the time budget of a planner must be positive")

    @property
    def text(self) -> str:
        """Canonical text, e.g. ``ios(r=3,s=8)``, without defaults and what does not matter."""
        parts: list[str] = []
        later = ["max_streams"]
        if self.planner in _EXACT:
            parts += [f"r={_number(self.max_group_ops)}", f"s={_number(self.max_groups)}"]
            parts += ["single_root"] if self.single_root else []
            later.append("max_block_ops")
        if self.planner in (*_EXACT[:4], "greedy", "rammer"):
            later.append("join")
        if self.planner in _LAZY:
            later += _REAL
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in later and value != option.default:
                parts.append(f"{option.name}={_number(value)}")
        return f"{self.planner}({','.join(parts)})" if parts else self.planner

    @staticmethod
    def for_serving(text: str = "") -> PlannerSettings:
        """Read the planner of a registration, with or without options; empty: the portfolio.

        A lazy search that is told no end stops when another percent is all there is to gain, or
        after a quarter of a minute. Raises InvalidRequest: an unknown planner or option.
        """
        options = PlannerSettings.parse(text or PORTFOLIO)
        if options.planner not in _LAZY or "gap=" in text or "time_budget_s=" in text:
            return options
        return replace(options, gap=SERVING_GAP, time_budget_s=SERVING_BUDGET_S)

    @staticmethod
    def parse(text: str) -> PlannerSettings:
        """Inverse of ``text``, also of a name without options; raises InvalidRequest."""
        match = re.fullmatch(r"([a-z-]+)(?:\((.*)\))?", text.strip())
        if match is None:
            raise InvalidRequest(f"not a planner: {text!r}; write e.g. ios(r=3,s=8)")
        values: dict[str, str | int | float | bool | None] = {}
        for part in filter(None, (match[2] or "").split(",")):
            name, _, value = part.strip().partition("=")
            name = {"r": "max_group_ops", "s": "max_groups"}.get(name, name)
            if name == "single_root" and not value:
                values[name] = True
            elif name == "join" and value in JOINS:
                values[name] = value
            elif name in _OPTIONAL and value == "none":
                values[name] = None
            elif name in _WHOLE and re.fullmatch(r"[0-9]{1,9}", value):
                values[name] = int(value)
            elif name in _REAL and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
                values[name] = float(value)
            else:
                raise InvalidRequest(f"planner {text!r}: cannot read the option {part!r}")
        return PlannerSettings(match[1], **values)  # type: ignore[arg-type]


_OPTIONAL = ("max_group_ops", "max_groups", "max_block_ops")
_WHOLE = (*_OPTIONAL, "max_streams")
_REAL = ("gap", "time_budget_s")
_LAZY = ("lazy-ios", PORTFOLIO)
_EXACT = ("ios-merge", "ios-parallel", "ios", *_LAZY)


def _number(value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    return "none" if value is None else f"{value:.9f}".rstrip("0").rstrip(".")
