"""The shared memory of two processes, and the layout of slots in it."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core.errors import DeviceOutOfMemory
from braid.core.tensor import TensorType
from braid.engine.link.shared_memory import ALIGNMENT, Arena, slot_layout

SIZE = 64 * 1024


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(SIZE)
    yield made
    made.close()


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 9000)), max_size=60))
def test_regions_never_overlap_and_all_space_comes_back(steps: list[tuple[bool, int]]) -> None:
    arena = Arena(SIZE)
    held: dict[int, int] = {}
    for take, size in steps:
        if take:
            offset = arena.allocate(size)
            if offset is not None:
                assert offset % ALIGNMENT == 0
                assert offset + size <= SIZE
                assert all(offset + size <= o or o + s <= offset for o, s in held.items())
                held[offset] = size
        elif held:
            offset = list(held)[size % len(held)]
            del held[offset]
            arena.release(offset)
    for offset in held:
        arena.release(offset)
    assert arena.used_bytes == 0
    assert arena.allocate(SIZE) == 0
    arena.release(0)
    arena.close()


def test_a_full_arena_says_wait_and_an_impossible_size_says_why(arena: Arena) -> None:
    assert arena.allocate(SIZE) == 0
    assert arena.allocate(1) is None
    with pytest.raises(DeviceOutOfMemory, match="BRAID_SHARED_MEMORY_BYTES"):
        arena.allocate(SIZE + 1)


@pytest.mark.parametrize(
    "look", [lambda view: view[:8], lambda view: np.frombuffer(view, np.uint8, 8)]
)
def test_an_arena_closes_while_a_view_of_it_is_held(
    look: Callable[[memoryview], memoryview],
) -> None:
    arena = Arena(SIZE)
    view = memoryview(look(arena.view))
    view[:] = b"answered"

    arena.close()

    assert bytes(view) == b"answered"


def test_layout_is_aligned_and_in_order() -> None:
    layout = slot_layout(
        {"a": TensorType("INT8", (3,)), "b": TensorType("FP32", (2, 5))},
        {"y": TensorType("FP64", ())},
    )

    assert [layout.inputs["a"].offset, layout.inputs["b"].offset] == [0, 64]
    assert layout.outputs["y"].offset == 128
    assert layout.size_bytes == 192
