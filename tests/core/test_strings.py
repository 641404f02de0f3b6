import random

import pytest

from braid.core.pieces import PIECE_BYTES, finished
from braid.core.strings import (
    MAX_STRINGS,
    PIECE_STRINGS,
    elements_of,
    length_prefixed,
    read_strings,
    text_parts,
)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_the_elements(seed: int) -> None:
    random_ = random.Random(seed)
    texts = ["é✈a\0"[: random_.randint(0, 4)] * random_.randint(0, 9) for _ in range(seed)]
    encoded = [text.encode() for text in texts]
    data = length_prefixed(encoded)

    strings = finished(read_strings(data, len(texts)))

    assert [bytes(each) for each in elements_of(data)] == encoded
    assert len(strings) == len(data)
    for _ in range(5):
        first = random_.randint(0, len(texts))
        last = random_.randint(first, len(texts))
        part, start = strings.part(first, last)
        assert bytes(part) == length_prefixed(encoded[first:last])
        assert start == len(length_prefixed(encoded[:first]))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "has 0 strings; its shape takes 1"),
        (b"\0\0\0", "ends within the length of element 0"),
        (b"\2\0\0\0a", "has the length 2 before element 0, but 1 bytes are left"),
        (b"\1\0\0\0\x80", "has no UTF-8 in element 0"),
        (bytes(8), "has more than the 1 strings"),
        (bytes(7), "has more than the 1 strings"),
    ],
)
def test_mistakes_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        finished(read_strings(data, 1))


def test_many_strings_and_long_ones_are_checked_in_pieces() -> None:
    many = length_prefixed([b"ab"] * MAX_STRINGS)
    long = length_prefixed(["é".encode() * (2 * PIECE_BYTES)])

    assert sum(1 for _ in read_strings(many, MAX_STRINGS)) == MAX_STRINGS // PIECE_STRINGS
    assert sum(1 for _ in read_strings(long, 1)) >= 4
    with pytest.raises(ValueError, match="no UTF-8 in element 0"):
        finished(read_strings(long[:-1] + b"a", 1))


@pytest.mark.parametrize("size", range(1, 9))
def test_a_text_is_the_same_in_parts_that_cut_its_characters(size: int) -> None:
    text = "aé✈😀\0" * 5

    assert "".join(text_parts(text.encode(), size)) == text
    with pytest.raises(UnicodeDecodeError):
        list(text_parts(text.encode() + b"\xf0\x9f", size))
