"""Executors of a CPU, closed when the test or module that uses one has ended; widths of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.native.find import find_native


def executor_of(scope: Literal["module", "function"] = "module", **options: Any) -> Any:
    """A fixture of one, which a test module calls ``executor``."""

    @pytest.fixture(scope=scope, name="executor")
    def executor() -> Iterator[CpuExecutor]:
        made = CpuExecutor(**options)
        with torch.inference_mode():
            yield made
        made.close()

    return executor


@pytest.fixture(params=[0, 1, 2], ids=["4 lanes", "8 lanes", "16 lanes"])
def vector_width(request: pytest.FixtureRequest) -> Iterator[None]:
    """The part in C with vectors of this width at most; the same random numbers in each test."""
    native = find_native()
    assert native is not None
    native.braid_limit_vectors(request.param)
    torch.manual_seed(0)
    with torch.inference_mode():
        yield
    native.braid_limit_vectors(2)
