"""Other runtimes that can run a whole model on a device, and what users read of them.

A schedule whose planner is one of these runs there; a plan of our own runs where that cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from braid.core.precision import BF16, FP32

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"

RUNTIMES: Mapping[str, str] = MappingProxyType({ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"})
"""Names for users, by the names in schedules and messages."""

GONE = frozenset({"onnxruntime-1", "openvino-1"})
"""Runtimes on one thread, which schedules of a9f91505 and before may name."""

SERVED_WHOLE = f"served whole by {RUNTIMES[ONNXRUNTIME]}"
"""What the import notes of a model with operators that it does not lower."""

_COMPUTE_IN: Mapping[str, frozenset[str]] = MappingProxyType(
    {ONNXRUNTIME: frozenset({FP32}), OPENVINO: frozenset({FP32, BF16})}
)


def runtimes_in(precision: str, runtimes: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in runtimes if precision in _COMPUTE_IN[name])
