"""Kernels that a library refuses, and faults that are the device's own."""

import pytest
import torch
from torch import Tensor

from braid.engine.cuda.kernels.fallback_kernel import with_fallback
from braid.engine.program.kernel import Kernel
from tests.engine.cuda.recording import CudaError

NO_ENGINE = RuntimeError("FIND was unable to find an engine to execute this computation")


def failing_at_first(fault: Exception, runs: list[int]) -> Kernel:
    def run(x: Tensor) -> Tensor:
        runs.append(len(runs))
        if len(runs) == 1:
            raise fault
        return x + 2

    return Kernel("conv-relu.nhwc", run, needs_finite=True)


@pytest.mark.parametrize("fault", [NO_ENGINE, ValueError("of a compiler")], ids=type)
def test_what_a_library_refuses_runs_otherwise_from_then_on(
    fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    kernel = with_fallback(failing_at_first(fault, runs), lambda x: x + 1, "stem")

    for _ in range(2):
        assert kernel.function(torch.zeros(1)).item() == 1.0

    assert len(runs) == 1, "it is not tried again"
    assert "unit stem does not run on conv-relu.nhwc" in caplog.text
    assert (kernel.variant, kernel.needs_finite) == ("conv-relu.nhwc", True)


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        CudaError("an illegal memory access was encountered", 700),
        CudaError("operation not permitted when stream is capturing", 900),
    ],
    ids=str,
)
def test_faults_of_the_device_are_not_refusals(fault: Exception) -> None:
    kernel = with_fallback(failing_at_first(fault, []), lambda x: x + 1, "stem")

    with pytest.raises(type(fault)):
        kernel.function(torch.zeros(1))
    assert kernel.function(torch.zeros(1)).item() == 2.0, "tried again"
