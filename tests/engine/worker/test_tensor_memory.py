"""Memory of a worker: of tensors, and what it gives back."""

import numpy as np
import torch

from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.link.messages import DescribeDevice, UnloadModel
from braid.engine.runtime.memory import LOADED_TRIM_BYTES, TRIM_BYTES, FreedMemory
from braid.engine.worker.tensor_memory import memory_bytes
from tests.clock import until
from tests.engine.worker.serving import ServedWorker


def test_views_and_the_same_tensor_count_once() -> None:
    whole = np.zeros(100, np.float32)
    views = whole[:10], whole.reshape(10, 10).T, torch.from_numpy(whole[50:])

    assert memory_bytes([whole[2:4], whole, whole, *views]) == {"cpu": 400}


def test_other_tensors_count_each_with_their_own_type() -> None:
    values = [torch.zeros(10, dtype=torch.float64), np.zeros(3, np.int8)]

    assert memory_bytes([*values, np.zeros(0)]) == {"cpu": 83}


def test_questions_for_its_state_do_not_keep_a_worker_from_giving_memory_back() -> None:
    given_back: list[int] = []
    freed = FreedMemory(idle_s=0.5, give_back=given_back.append)
    worker = ServedWorker(lambda: CpuBackend(CpuExecutor(1)), 1 << 20, freed)
    try:
        worker.call(UnloadModel("d" * 64))

        until(lambda: worker.call(DescribeDevice()) and given_back)
    finally:
        worker.close()

    assert given_back == [LOADED_TRIM_BYTES]


def test_after_runs_only_much_memory_is_given_back() -> None:
    given_back: list[int] = []
    freed = FreedMemory(idle_s=0.0, give_back=given_back.append)

    freed.loaded()
    freed.worked()
    freed.give_back()
    nothing_new = freed.due_s
    freed.worked()
    freed.give_back()

    assert nothing_new is None
    assert given_back == [LOADED_TRIM_BYTES, TRIM_BYTES]
