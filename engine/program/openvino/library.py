"""The OpenVINO library: whether it is there, and how it is loaded.

Loaded in a process when its first model is opened, which takes 0.2 s. Its converters stay out:
they bring a package that reports on use to its maker (openvino_telemetry).
"""

from __future__ import annotations

import logging
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("braid.worker")

_CONVERTERS = "openvino.tools.ovc"


@cache
def is_installed() -> bool:
    """Whether OpenVINO can be loaded here; does not load it."""
    found = find_spec("openvino") is not None
    if not found:
        log.debug("OpenVINO takes no part: pip install 'braid-serve[openvino]'")
    return found


def load() -> Any:
    """Import OpenVINO without its converters."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault(_CONVERTERS, None)  # type: ignore[arg-type]  # import refuses it
    import openvino

    return openvino
