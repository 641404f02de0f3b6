from typing import Any

import numpy as np
import pytest

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import finished
from braid.core.strings import MAX_STRINGS, elements_of
from braid.server.inference.requests import OutputTensor
from braid.server.servicers.oip.contents import (
    DTYPES,
    MAX_CLASSES_IN_ALL,
    PIECE_CLASSES,
    PIECE_ELEMENTS,
    TYPED,
    classify,
    raw_bytes,
)
from braid.server.servicers.oip.wire import messages


@pytest.mark.parametrize("datatype", TYPED)
def test_long_typed_contents_become_the_raw_ones_piece_by_piece(datatype: str) -> None:
    field, dtype = TYPED[datatype], DTYPES[datatype]
    values = np.random.default_rng(0).integers(0, 100, 3 * PIECE_ELEMENTS + 1).astype(dtype)
    contents = messages.InferTensorContents(**{field: values.tolist()})

    assert finished(raw_bytes("x", datatype, contents)) == values.tobytes()
    assert sum(1 for _ in raw_bytes("x", datatype, contents)) == 3


def test_a_value_out_of_range_is_seen_in_any_piece() -> None:
    contents = messages.InferTensorContents(int_contents=[1] * (2 * PIECE_ELEMENTS) + [128])

    with pytest.raises(InvalidTensor, match="outside the range of INT8"):
        finished(raw_bytes("x", "INT8", contents))


def test_more_strings_than_a_request_may_have_are_refused() -> None:
    contents = messages.InferTensorContents(bytes_contents=[b""] * (MAX_STRINGS + 1))

    with pytest.raises(InvalidTensor, match=f"{MAX_STRINGS + 1} strings; a request may have"):
        finished(raw_bytes("x", "BYTES", contents))


def expected(values: np.ndarray[Any, Any], count: int) -> list[bytes]:
    """Classes by sorting pairs in Python."""
    found = []
    for row in values.tolist():
        pairs = [(value != value, -value, index) for index, value in enumerate(row)]
        best = sorted(pairs, key=lambda pair: (pair[0], 0 if pair[0] else pair[1], pair[2]))
        found += [f"{row[index]:f}:{index}".encode() for *_, index in best[:count]]
    return found


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1, 1), 5),
        ((7, 10), 3),
        ((3, 3 * PIECE_CLASSES), 2 * PIECE_CLASSES + 1),
        ((2, 2 * PIECE_ELEMENTS + 17), 5),
        ((PIECE_ELEMENTS // 8, 17), 2),
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "FP64", "UINT8"])
def test_classes_are_the_largest_and_of_equal_ones_the_first(
    shape: tuple[int, int], count: int, datatype: str
) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(0, 50, shape).astype(DTYPES[datatype])
    if datatype == "FP32":
        values[rng.random(shape) < 0.1] = np.nan
        values[rng.random(shape) < 0.1] = -np.inf

    found = finished(classify("y", OutputTensor(datatype, shape, values.tobytes()), count, True))

    assert [bytes(each) for each in elements_of(found.data)] == expected(values, count)
    assert found.shape == (shape[0], min(count, shape[1]))


def test_many_classes_are_written_in_pieces() -> None:
    shape = (10, 2 * PIECE_CLASSES)
    tensor = OutputTensor("FP32", shape, np.zeros(shape, np.float32).tobytes())

    assert sum(1 for _ in classify("y", tensor, 2 * PIECE_CLASSES, True)) >= 19


def test_more_classes_than_an_answer_may_have_are_refused() -> None:
    shape = (1000, 2000)
    tensor = OutputTensor("UINT8", shape, bytes(2_000_000))

    with pytest.raises(InvalidRequest, match=rf"2000 classes of 1000 rows .* {MAX_CLASSES_IN_ALL}"):
        finished(classify("y", tensor, 10_000, True))


def test_classes_of_no_rows() -> None:
    found = finished(classify("y", OutputTensor("FP32", (0, 5), b""), 3, True))

    assert (found.dtype, found.shape, found.data) == ("BYTES", (0, 3), b"")
