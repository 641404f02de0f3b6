"""The tests marked ``gpu``, as far as they can run without one: their own faults come out here."""

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests", ["tests/engine/cuda/test_on_gpu.py", "tests/engine/cuda/kernels/test_on_gpu.py"]
)
def test_tests_for_a_gpu_pass_on_one_that_is_emulated(tests: str) -> None:
    command = ["-m", "pytest", "-q", "-p", "tests.engine.cuda.emulated", "-m", "gpu", tests]

    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-3000:]
