"""Other runtimes that can run a whole model on a device, and what users read of them.

A schedule whose planner is one of these runs there; a plan of our own runs where that cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from braid.core.precision import BF16, FP32

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"

_ENGINES = {ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}

_ALONE = "-1"


def on_one_thread(engine: str) -> str:
    """Name of an engine as a runtime that uses one thread of the device, the calling one."""
    return f"{engine}{_ALONE}"


def engine_of(runtime: str) -> str:
    """Name of the engine that a runtime is, on all threads or on one."""
    return runtime.removesuffix(_ALONE)


RUNTIMES: Mapping[str, str] = MappingProxyType(
    {
        **_ENGINES,
        **{on_one_thread(name): f"{text} on one thread" for name, text in _ENGINES.items()},
    }
)
"""Names for users, by the names in schedules and messages."""

SERVED_WHOLE = f"served whole by {_ENGINES[ONNXRUNTIME]}"
"""What the import notes of a model with operators that it does not lower."""

_COMPUTE_IN: Mapping[str, frozenset[str]] = MappingProxyType(
    {ONNXRUNTIME: frozenset({FP32}), OPENVINO: frozenset({FP32, BF16})}
)


def runtimes_in(precision: str, runtimes: Iterable[str]) -> tuple[str, ...]:
    """Those of ``runtimes`` that can compute a model in ``precision``."""
    return tuple(name for name in runtimes if precision in _COMPUTE_IN[engine_of(name)])
