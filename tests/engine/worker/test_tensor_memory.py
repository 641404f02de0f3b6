"""Memory of tensors: shared memory counts once, opaque tensors by their elements."""

from __future__ import annotations

import torch

from braid.engine.worker.tensor_memory import storage_bytes


def test_views_and_the_same_tensor_count_once() -> None:
    whole = torch.zeros(100)

    assert storage_bytes([whole, whole, whole[:10], whole.view(10, 10)]) == {"cpu": 400}


def test_other_tensors_count_each_with_their_own_type() -> None:
    tensors = [torch.zeros(10, dtype=torch.float64), torch.zeros(3, dtype=torch.int8)]

    assert storage_bytes([*tensors, torch.zeros(0)]) == {"cpu": 83}


def test_a_tensor_in_a_layout_of_a_library_counts_its_elements() -> None:
    assert storage_bytes([torch.zeros(2, 8, 3, 3).to_mkldnn()]) == {"cpu": 2 * 8 * 9 * 4}
