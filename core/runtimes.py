"""Other runtimes that can run a whole model on a device, and what users read of them.

A schedule whose planner is one of these runs there; a plan of our own runs where that cannot.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from braid.core.precision import BF16, FP32

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"

RUNTIMES: Mapping[str, str] = MappingProxyType({ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"})
"""Names for users, by the names in schedules and messages."""

PLAN_NAMES: Mapping[str, str] = {
    **RUNTIMES,
    "sequential": "one operator after another",
    "greedy": "greedy stages",
    "rammer": "stages by Rammer",
    "ios-merge": "stages by IOS, merged only",
    "ios-parallel": "stages by IOS, never merged",
    "ios": "stages by IOS",
    "lazy-ios": "stages by IOS, measured lazily",
    "lios": "streams by LIOS",
    "opara": "streams by Opara",
    "nimble": "streams by Nimble",
    "portfolio": "the best of all planners",
    "regions": "regions in several engines",
    "branches": "branches side by side",
    "rows": "rows side by side",
}
"""Names for users of runtimes, planners and what else makes plans."""

GONE = frozenset({"onnxruntime-1", "openvino-1"})
"""Runtimes on one thread, which schedules of a9f91505 and before may name."""

SERVED_WHOLE = f"served whole by {RUNTIMES[ONNXRUNTIME]}"
"""What the import notes of a model with operators that it does not lower."""

_COMPUTE_IN: Mapping[str, frozenset[str]] = MappingProxyType(
    {ONNXRUNTIME: frozenset({FP32}), OPENVINO: frozenset({FP32, BF16})}
)


def plan_text(name: str) -> str:
    """Name for users of a plan, without limits of its search; the precision stays."""
    plan, narrower, precision = name.partition(" in ")
    planner, _, options = plan.partition("(")
    joins = [option for option in options.rstrip(")").split(",") if option.startswith("join=")]
    return ", ".join((PLAN_NAMES.get(planner, planner), *joins)) + narrower + precision


def runtimes_in(precision: str, runtimes: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in runtimes if precision in _COMPUTE_IN[name])
