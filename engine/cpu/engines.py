"""Engines that CPUs have, by their names in braid.core.runtimes."""

from __future__ import annotations

from collections.abc import Mapping

from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.engine.program.engines import Engine
from braid.engine.program.onnxruntime_session import OnnxRuntime
from braid.engine.program.openvino_model import OpenVino

ENGINES: Mapping[str, Engine] = {ONNXRUNTIME: OnnxRuntime(), OPENVINO: OpenVino()}


def installed_engines() -> dict[str, Engine]:
    return {name: engine for name, engine in ENGINES.items() if engine.is_installed}
