"""Header blocks: the examples of RFC 7541, and what a peer may not send."""

import random

import pytest

from braid.server.http2 import frames
from braid.server.http2.answer_headers import literal
from braid.server.http2.hpack import Decoder, HeaderError, HeadersTooLong, decode_huffman
from braid.server.http2.request_headers import HeaderBlocks

REQUESTS = [
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
]


@pytest.mark.parametrize(
    "blocks",
    [
        [  # appendix C.3: plain strings
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        [  # appendix C.4: Huffman's code
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
    ],
    ids=["plain", "in code"],
)
def test_the_examples_of_the_rfc_are_read(blocks: list[str]) -> None:
    decoder = Decoder(1 << 14)
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == REQUESTS


def test_entries_leave_the_table_when_it_shrinks() -> None:
    decoder = Decoder(1 << 14)
    decoder.decode(bytes.fromhex("400161 0162"))  # a: b, kept as entry 62
    assert decoder.decode(b"\xbe") == [("a", "b")]

    decoder.decode(b"\x20")  # a table of no bytes
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # entry 0
        b"\xbe",  # an entry that is not there
        b"\x40\x05ab",  # a string that is cut off
        b"\x40",
        b"\xff\xff\xff\xff\xff\xff",  # an integer without an end
        b"\x3f\xe2\x1f",  # a table of more than 4096 bytes
        b"\x82\x20",  # a size of the table after a field
        b"\x40\x81\x00\x00",  # padded with zeros
        b"\x40\x84\xff\xff\xff\xff\x00",  # the end of a string within it
    ],
)
def test_a_malformed_block_is_refused(block: bytes) -> None:
    with pytest.raises(HeaderError):
        Decoder(1 << 14).decode(block)


def test_a_block_may_not_grow_beyond_its_limit() -> None:
    decoder = Decoder(1000)
    decoder.decode(b"\x40\x01a\x64" + bytes(100))
    with pytest.raises(HeadersTooLong):
        decoder.decode(b"\xbe" * 8)  # eight times the same long field


def test_every_character_has_a_code_word() -> None:
    assert decode_huffman(bytes.fromhex("ae c3 77 1a 4b")) == "private"


@pytest.mark.parametrize("seed", range(20))
def test_blocks_that_were_seen_before_mean_what_the_table_says_now(seed: int) -> None:
    draw, blocks, decoder = random.Random(seed), HeaderBlocks(), Decoder(1 << 14)
    for _ in range(200):
        added = b"\x40" + literal(b"name", str(draw.randrange(5)).encode())[1:]
        newest = bytes([0x80 | 62])
        emptied = b"\x20\x3f\xe1\x1f"  # a table of no bytes, then of as many as usual
        block = draw.choice([newest, newest * 2, literal(b"a", b"b"), added, emptied])
        if not decoder._table:
            block = added
        read = blocks.begin(frames.END_HEADERS, 1, block)
        assert read == (decoder.decode(block), False)
