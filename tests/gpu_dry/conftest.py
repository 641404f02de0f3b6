"""The engine's driver on the runtime in software; elsewhere nothing is collected here."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from braid.engine.cuda.executor import CudaExecutor
from tests import ROOT
from tests.gpu_dry import device
from tests.gpu_dry.launches import NotingDriver

collect_ignore_glob = [] if device.is_loaded else ["test_*.py"]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    gc.collect()  # what earlier tests left in cycles would be freed amid this one
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


@pytest.fixture(scope="session")
def recipes() -> Callable[[Sequence[str]], Path]:
    """Makes the recipes of networks that are not there, and gives their folder."""
    folder = ROOT / "build/gpu-networks"

    def prepare(names: Sequence[str]) -> Path:
        missing = [name for name in names if not (folder / f"{name}.recipe").exists()]
        if missing:
            command = [sys.executable, "-m", "benchmarks.cuda.prepare", "--out", str(folder)]
            subprocess.run([*command, "--networks", *missing], cwd=ROOT, check=True)
        return folder

    return prepare
