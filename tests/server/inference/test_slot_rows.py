import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.core.errors import WorkerFault
from braid.core.inputs import ShapeClass
from braid.core.program import PlanToRun, ProgramKey
from braid.core.tensor import DTYPE_BYTES, TensorType
from braid.engine.link.shared_memory import slot_layout
from braid.server.devices.executables import Executable
from braid.server.inference.batching.queues import Piece, Ticket
from braid.server.inference.requests import CheckedRequest
from braid.server.inference.slot_rows import LOOKED_AT_BYTES, write_rows

ROWS, COLUMNS, OFFSET = 4, 33, 64
UNUSUAL = (np.nan, np.inf, -np.inf)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
Array = np.ndarray[Any, Any]


def executable(dtype: str, columns: int = COLUMNS, needs_finite: bool = True) -> Executable:
    specs = {"x": TensorType(dtype, (ROWS, columns))}
    program = ProgramKey("digest", tuple(specs.items()))
    return Executable(1, PlanToRun(program), slot_layout(specs, {}), needs_finite=needs_finite)


def request(rows: Array) -> Piece:
    checked = CheckedRequest(ShapeClass(()), len(rows), {"x": rows.tobytes()}, ())
    loop = asyncio.new_event_loop()
    ticket = Ticket(checked, None, 0.0, 0, loop.create_future())
    loop.close()
    return ticket.take(len(rows))


def written(ready: Executable, *requests: Array) -> tuple[bool, bytes]:
    memory = memoryview(bytearray(b"\xff" * (OFFSET + ready.layout.size_bytes)))
    is_finite = write_rows(memory, OFFSET, ready, [request(rows) for rows in requests])
    size = sum(field.size_bytes for field in ready.layout.inputs.values())
    return is_finite, bytes(memory[OFFSET : OFFSET + size])


@given(st.lists(FLOATS, min_size=2 * COLUMNS, max_size=2 * COLUMNS))
def test_rows_are_copied_and_never_called_finite_unless_they_are(elements: list[float]) -> None:
    rows = np.array(elements, np.float32).reshape(2, COLUMNS)
    padding = np.zeros((2, COLUMNS), np.float32)

    is_finite, slot = written(executable("FP32"), rows[:1], rows[1:])

    assert slot == rows.tobytes() + padding.tobytes()
    if np.abs(rows).sum(dtype=np.float64) < 1e38:
        assert is_finite


@pytest.mark.parametrize("dtype", ["INT64", "INT32", "UINT8"])
def test_padding_of_integers_repeats_a_row_that_was_sent(dtype: str) -> None:
    """Of zeros, a model that divides would refuse a row that no caller has sent."""
    rows = np.arange(1, 2 * COLUMNS + 1, dtype=dtype.lower()).reshape(2, COLUMNS)

    _, slot = written(executable(dtype), rows[:1], rows[1:])

    assert slot == rows.tobytes() + 2 * rows[1:].tobytes()


def test_there_may_be_no_row_and_nothing_in_a_row() -> None:
    assert written(executable("INT64", 0), np.zeros((2, 0), np.int64))[1] == b""


@given(st.integers(0, 2 * COLUMNS - 1), st.sampled_from(UNUSUAL), FLOATS)
@pytest.mark.parametrize("dtype", ["FP32", "FP64"])
def test_one_nan_or_infinity_in_any_request_shows(
    dtype: str, at: int, value: float, other: float
) -> None:
    rows = np.full(2 * COLUMNS, other, {"FP32": "<f4", "FP64": "<f8"}[dtype])
    rows[at] = value

    assert not written(executable(dtype), *rows.reshape(2, 1, COLUMNS))[0]


@pytest.mark.parametrize(
    ("dtype", "known"), [("INT64", True), ("BOOL", True), ("FP16", False), ("BF16", False)]
)
def test_whole_numbers_are_finite_and_halves_are_left_to_the_worker(
    dtype: str, known: bool
) -> None:
    rows = np.zeros((ROWS, COLUMNS), f"V{DTYPE_BYTES[dtype]}")

    assert written(executable(dtype), rows)[0] is known


def test_what_left_the_caches_or_need_not_be_finite_is_not_looked_at() -> None:
    columns = LOOKED_AT_BYTES // ROWS // 4
    zeros = np.zeros((ROWS, columns), np.float32)

    assert written(executable("FP32", columns), zeros)[0]
    assert not written(executable("FP32", columns + 1), np.zeros((ROWS, columns + 1), "<f4"))[0]
    assert not written(executable("FP32", columns, needs_finite=False), zeros)[0]


@pytest.mark.parametrize("missing", [1, ROWS * COLUMNS])
def test_a_batch_whose_rows_do_not_add_up_is_not_run(missing: int) -> None:
    whole, short = (
        request(np.zeros((1, COLUMNS), np.float32)),
        request(np.ones((1, COLUMNS), np.float32)),
    )
    kept = bytes(short.request.inputs["x"])[: -4 * missing]
    short.request = dataclasses.replace(short.request, inputs={"x": kept})
    ready = executable("FP32")
    memory = memoryview(bytearray(OFFSET + ready.layout.size_bytes))

    with pytest.raises(WorkerFault, match="do not add up"):
        write_rows(memory, OFFSET, ready, [short, whole])
