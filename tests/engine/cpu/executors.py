"""Executors of a CPU, closed when the test or module that uses one has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from braid.engine.cpu.executor import CpuExecutor


def executor_of(scope: Literal["module", "function"] = "module", **options: Any) -> Any:
    """A fixture of one, which a test module calls ``executor``."""

    @pytest.fixture(scope=scope, name="executor")
    def executor() -> Iterator[CpuExecutor]:
        made = CpuExecutor(**options)
        with torch.inference_mode():
            yield made
        made.close()

    return executor
