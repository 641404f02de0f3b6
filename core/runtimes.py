"""Other runtimes that can run a whole model on a device, and what users read of them.

A schedule whose planner is one of these runs there; a plan of our own runs where that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

ONNXRUNTIME = "onnxruntime"
OPENVINO = "openvino"

RUNTIMES: Mapping[str, str] = MappingProxyType({ONNXRUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"})
"""Names for users, by the names in schedules and messages."""
