"""The engine's driver on the runtime in software; elsewhere nothing is collected here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from braid.engine.cuda.executor import CudaExecutor
from tests.gpu_dry import device
from tests.gpu_dry.launches import NotingDriver

collect_ignore_glob = [] if device.is_loaded else ["test_*.py"]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def driver() -> NotingDriver:
    return NotingDriver()


@pytest.fixture
def executor(driver: NotingDriver) -> Iterator[CudaExecutor]:
    executor = CudaExecutor(driver)
    yield executor
    executor.close()
