"""What a planner may be told, with one canonical text that names it in cache keys."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from core.errors import InvalidRequest
from core.plan import MAX_STREAMS

PLANNERS = ("sequential", "ios")


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """A planner and its limits. Hashable; equal options give equal plans on equal latencies."""

    planner: str = "ios"
    max_group_ops: int | None = 3  # r: units in one group; None = no limit
    max_groups: int | None = 8  # s: groups in one stage; None = no limit
    single_root: bool = False  # groups with one source only, as in the code of the IOS authors
    max_block_ops: int | None = 40  # larger blocks are split; None = the whole graph is one block
    max_streams: int = MAX_STREAMS

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InvalidRequest(f"no planner {self.planner!r}; there are: {', '.join(PLANNERS)}")
        for limit in (self.max_group_ops, self.max_groups, self.max_block_ops):
            if limit is not None and limit < 1:
                raise InvalidRequest("the limits of a planner must be at least 1")
        if not 1 <= self.max_streams <= MAX_STREAMS:
            raise InvalidRequest(f"a plan has 1 to {MAX_STREAMS} streams, not {self.max_streams}")

    @property
    def text(self) -> str:
        """Canonical text, e.g. ``ios(r=3,s=8)``; what is at its default is left out."""
        if self.planner == "sequential":
            return self.planner
        parts = [f"r={_limit(self.max_group_ops)}", f"s={_limit(self.max_groups)}"]
        if self.single_root:
            parts.append("single_root")
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in ("max_block_ops", "max_streams") and value != option.default:
                parts.append(f"{option.name}={_limit(value)}")
        return f"{self.planner}({','.join(parts)})"

    @staticmethod
    def parse(text: str) -> PlannerOptions:
        """Read a planner's name with or without options, the inverse of ``text``.

        Raises:
            InvalidRequest: an unknown planner or option.
        """
        match = re.fullmatch(r"([a-z-]+)(?:\((.*)\))?", text.strip())
        if match is None:
            raise InvalidRequest(f"not a planner: {text!r}; write e.g. ios(r=3,s=8)")
        values: dict[str, int | bool | None] = {}
        for part in filter(None, (match[2] or "").split(",")):
            name, _, value = part.strip().partition("=")
            name = {"r": "max_group_ops", "s": "max_groups"}.get(name, name)
            if name == "single_root" and not value:
                values[name] = True
            elif name in _LIMITS and value == "none":
                values[name] = None
            elif name in _NUMBERS and value.isdigit():
                values[name] = int(value)
            else:
                raise InvalidRequest(f"planner {text!r}: cannot read the option {part!r}")
        return PlannerOptions(match[1], **values)  # type: ignore[arg-type]


_LIMITS = ("max_group_ops", "max_groups", "max_block_ops")
_NUMBERS = (*_LIMITS, "max_streams")


def _limit(value: int | None) -> str:
    return "none" if value is None else str(value)
