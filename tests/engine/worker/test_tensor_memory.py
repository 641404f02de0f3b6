"""Memory of a worker: of tensors, and what it gives back."""

import torch

from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.link.messages import DescribeDevice, UnloadModel
from braid.engine.runtime.memory import LOADED_TRIM_BYTES, TRIM_BYTES, FreedMemory
from braid.engine.worker.tensor_memory import storage_bytes
from tests.clock import until
from tests.engine.worker.serving import ServedWorker


def test_views_and_the_same_tensor_count_once() -> None:
    whole = torch.zeros(100)

    assert storage_bytes([whole, whole, whole[:10], whole.view(10, 10)]) == {"cpu": 400}


def test_other_tensors_count_each_with_their_own_type() -> None:
    tensors = [torch.zeros(10, dtype=torch.float64), torch.zeros(3, dtype=torch.int8)]

    assert storage_bytes([*tensors, torch.zeros(0)]) == {"cpu": 83}


def test_a_tensor_in_a_layout_of_a_library_counts_its_elements() -> None:
    assert storage_bytes([torch.zeros(2, 8, 3, 3).to_mkldnn()]) == {"cpu": 2 * 8 * 9 * 4}


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
