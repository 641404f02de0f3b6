"""What workers are told before their libraries load, and what their end means."""

from __future__ import annotations

import pytest

from braid.engine.link.options import LOST_EXIT_CODE, EndReason, WorkerEnd
from braid.engine.processes.child import ChildEnd
from braid.engine.processes.environment import cpu_environment, cuda_environment


@pytest.mark.parametrize(
    ("visible", "gpu", "chosen"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("2,5", 1, "5"),
        ("GPU-aa, GPU-bb", 1, "GPU-bb"),
        ("2,5", 2, "-1"),
        ("", 0, ""),
    ],
)
def test_a_worker_sees_one_gpu_of_those_that_the_server_sees(
    visible: str | None, gpu: int, chosen: str
) -> None:
    ours = {"PATH": "/bin"} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}

    assert cuda_environment(gpu, ours)["CUDA_VISIBLE_DEVICES"] == chosen


def test_threads_of_openmp_spin_briefly_and_not_where_a_quota_would_pay_for_it() -> None:
    assert cpu_environment({}, spins=True)["GOMP_SPINCOUNT"] == "10000"
    assert cpu_environment({}, spins=False)["GOMP_SPINCOUNT"] == "0"


def test_graphs_get_32_connections_unless_the_operator_said_otherwise() -> None:
    assert cuda_environment(0, {})["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    told = cuda_environment(0, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})
    assert told["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_the_end_of_a_worker_says_why() -> None:
    lost = WorkerEnd.of(ChildEnd(LOST_EXIT_CODE), "the GPU failed: an illegal memory access")
    assert lost.reason is EndReason.DEVICE_LOST
    assert "an illegal memory access" in lost.text
    assert WorkerEnd.of(ChildEnd(-9), "") == WorkerEnd(EndReason.KILLED, "it was killed by SIGKILL")
    assert WorkerEnd.of(ChildEnd(1), "").reason is EndReason.EXITED
