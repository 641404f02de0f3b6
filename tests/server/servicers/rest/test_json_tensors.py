import json
from typing import Any

import numpy as np
import pytest

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import finished
from braid.core.strings import PIECE_STRINGS, length_prefixed
from braid.server.servicers.oip.contents import DTYPES
from braid.server.servicers.rest.json_tensors import (
    PIECE_ELEMENTS,
    PIECE_TEXT_BYTES,
    raw_of,
    texts_of,
)


def written(datatype: str, raw: bytes | memoryview) -> tuple[list[Any], list[bytes]]:
    """The elements as Python reads them, and the pieces they were in."""
    pieces = list(texts_of("y", datatype, raw))
    return json.loads(b"[" + b"".join(pieces) + b"]"), pieces


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, PIECE_ELEMENTS, PIECE_ELEMENTS + 1, 3 * PIECE_ELEMENTS])
def test_numbers_are_the_same_afterwards(datatype: str, count: int) -> None:
    rng, dtype = np.random.default_rng(count), DTYPES[datatype]
    values = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    if datatype == "BOOL":
        values = rng.random(count) < 0.5

    found, pieces = written(datatype, memoryview(values.tobytes()))

    if dtype.kind in "biu":
        assert found == values.tolist()
    else:
        with np.errstate(invalid="ignore"):  # NaN of some bits
            wanted = values.astype(np.float64)
        np.testing.assert_array_equal(found, wanted)
    assert len(pieces) == -(-count // PIECE_ELEMENTS)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "BF16"])
def test_what_is_no_finite_number_is_written_as_python_reads_it(datatype: str) -> None:
    values = np.array([1, np.nan, np.inf, -np.inf, -0.0, np.nan, 2.5], DTYPES[datatype])

    _, pieces = written(datatype, values.tobytes())

    assert pieces == [b"1.0,NaN,Infinity,-Infinity,-0.0,NaN,2.5"]


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["a", 'é"\\\n\0', "✈😀"],
        ["ab"] * (3 * PIECE_STRINGS + 1),
        ["é" * PIECE_TEXT_BYTES],
        ["a", "\0é😀" * PIECE_TEXT_BYTES, "", "b" * PIECE_TEXT_BYTES, "c"],
        ["a" * (PIECE_TEXT_BYTES - 1)] * 3,
    ],
    ids=lambda texts: f"{len(texts)} strings of {sum(map(len, texts))}",
)
def test_strings_are_the_same_afterwards(texts: list[str]) -> None:
    found, pieces = written("BYTES", length_prefixed(text.encode() for text in texts))

    assert found == texts
    assert max(map(len, pieces), default=0) <= 7 * PIECE_TEXT_BYTES  # each may become \\u0000


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3" + b"a" * PIECE_TEXT_BYTES, b"a\xed\xa0\x80"])
@pytest.mark.parametrize("before", [0, 2 * PIECE_STRINGS])
def test_bytes_that_are_no_text_are_refused(bad: bytes, before: int) -> None:
    with pytest.raises(InvalidRequest, match="output 'y' is no text; ask for it with"):
        written("BYTES", length_prefixed([b"a"] * before + [bad]))


@pytest.mark.parametrize(
    "data", [["a" * 100, *[""] * 50], [1.0, "2"], [[1.0, 2.0], ["3", 4.0]], [None], [{"a": 1}]]
)
def test_elements_that_are_no_numbers_are_refused_before_an_array_is_made(
    data: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(np, "array")  # of strings it would be as wide as the longest

    with pytest.raises(InvalidTensor, match=r"input 'x' has an element in 'data' that is no FP32"):
        finished(raw_of("x", "FP32", data))
