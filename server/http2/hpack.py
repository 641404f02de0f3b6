"""Header compression of HTTP/2 (RFC 7541): blocks of a peer to names and values.

Only reading: what the server sends is literal (``answer_headers``). The code words of appendix B
are the canonical ones of their lengths, so the lengths are all that is kept here.
"""

from collections import deque
from typing import Final

Field = tuple[str, str]

TABLE_BYTES: Final = 4096
"""Size of the table that every peer may use."""

FIELD_BYTES: Final = 32  # that a field counts beside its characters
FIELD_WORK, CODE_WORK = 128, 16
"""Work of a field, and of a byte in Huffman's code; that of a decoded byte is 1."""

_STATIC_TEXT: Final = (
    ":authority|:method=GET|:method=POST|:path=/|:path=/index.html|:scheme=http|"
    ":scheme=https|:status=200|:status=204|:status=206|:status=304|:status=400|:status=404|"
    ":status=500|accept-charset|accept-encoding=gzip, deflate|accept-language|accept-ranges|"
    "accept|access-control-allow-origin|age|allow|authorization|cache-control|"
    "content-disposition|content-encoding|content-language|content-length|content-location|"
    "content-range|content-type|cookie|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link|"
    "location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|"
    "retry-after|server|set-cookie|strict-transport-security|transfer-encoding|user-agent|"
    "vary|via|www-authenticate"
)
_STATIC: Final[tuple[Field, ...]] = tuple(
    (name, value) for name, _, value in (entry.partition("=") for entry in _STATIC_TEXT.split("|"))
)

_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b"
    "080606060505050606060606060607080f060c0a0d0607070707070707070707070707070707070707070707"
    "0807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c14161414"
    "1616161716171717171718171818161718171717171516171617171816151416161717151716161815161717"
    "151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a"
    "1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)


class HeaderError(Exception):
    """A block is not what RFC 7541 describes."""


class HeadersTooLong(Exception):
    """A block has more characters than are taken; the table is in step."""


class HeadersBeyondReason(Exception):
    """A block has so many characters that the rest of it is not read."""


def _words() -> dict[str, bytes]:
    """Return the symbol of each code word, which is a text of bits; that of the end has none."""
    words, code, length = dict[str, bytes](), 0, 0
    for symbol in sorted(range(256), key=lambda symbol: (_CODE_LENGTHS[symbol], symbol)):
        code <<= _CODE_LENGTHS[symbol] - length
        length = _CODE_LENGTHS[symbol]
        words[f"{code:0{length}b}"] = bytes([symbol])
        code += 1
    return words


def _steps(words: dict[str, bytes], nodes: dict[str, int]) -> list[tuple[int, bytes]]:
    """Return where four bits lead from each node, and the symbol on the way.

    Four bits end one code word at most: the shortest has five. The word of the end leads to a node
    that no string ends at and that nothing leads away from.
    """
    steps, dead = [], len(nodes)
    for begin in nodes:
        for four in range(16):
            bits = f"{begin}{four:04b}"
            ends = (end for end in range(len(begin) + 1, len(bits) + 1) if bits[:end] in words)
            end = next(ends, 0)
            steps.append((nodes.get(bits[end:], dead), words.get(bits[:end], b"")))
    return steps + [(dead, b"")] * 16


_WORDS: Final = _words()
_NODES: Final = dict.fromkeys(word[:length] for word in _WORDS for length in range(len(word)))
_NUMBERS: Final = {begin: number for number, begin in enumerate(_NODES)}
_STEPS: Final = _steps(_WORDS, _NUMBERS)
_LAST: Final = frozenset(_NUMBERS["1" * bits] for bits in range(8))
"""Nodes that a string may end at: up to seven bits, all of them set, lead there."""


class Decoder:
    """Reader of the blocks of one connection, in their order."""

    def __init__(self, max_bytes: int) -> None:
        """Take blocks of up to ``max_bytes``, counted as RFC 9113 counts a list of fields.

        Longer blocks are read up to four times as much, to keep the table in step.
        """
        self._max_bytes = max_bytes
        self._table: deque[Field] = deque()
        self._size = 0
        self._limit = TABLE_BYTES
        self.changes = 0  # of the table: a block that made none means the same until the next one
        self.work = 0  # of all blocks

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block.

        Raises HeadersTooLong, after which the connection may go on; HeadersBeyondReason or
        HeaderError, after which it cannot.
        """
        fields: list[Field] = []
        size = at = 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 7)
                    field = self._entry(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 6)
                    self._add(field)
                elif first & 0x20:
                    limit, at = _integer(block, at, 5)
                    if limit > TABLE_BYTES or size:
                        raise HeaderError("a size of the table is out of place")
                    self._limit = limit
                    self.changes += 1
                    self._shrink()
                    continue
                else:
                    field, at = self._literal(block, at, 4)
                length = len(field[0]) + len(field[1])
                size += length + FIELD_BYTES
                self.work += length + FIELD_WORK
                if size <= self._max_bytes:
                    fields.append(field)
                elif size > 4 * self._max_bytes:
                    raise HeadersBeyondReason(f"more than {4 * self._max_bytes} bytes of headers")
        except IndexError:
            raise HeaderError("a block is cut off, or names an entry that is not there") from None
        if size > self._max_bytes:
            raise HeadersTooLong(f"more than {self._max_bytes} bytes of headers")
        return fields

    def _entry(self, index: int) -> Field:
        if not index:
            raise HeaderError("entries are counted from 1")
        if index <= len(_STATIC):
            return _STATIC[index - 1]
        return self._table[index - len(_STATIC) - 1]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = self._string(block, at)
        value, at = self._string(block, at)
        return (name, value), at

    def _string(self, block: bytes, at: int) -> tuple[str, int]:
        in_code = block[at] & 0x80
        length, begin = _integer(block, at, 7)
        end = begin + length
        if end > len(block):
            raise HeaderError("a string is cut off")
        data = block[begin:end]
        if not in_code:
            return data.decode("latin-1"), end
        self.work += length * CODE_WORK
        return decode_huffman(data), end

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + FIELD_BYTES
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + FIELD_BYTES


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return the integer at ``at`` with a prefix of ``bits``, and the position after it."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 28, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HeaderError("an integer is too long")


def decode_huffman(data: bytes) -> str:
    """Return the characters of a string in Huffman's code. HeaderError: its padding is wrong."""
    symbols = bytearray()
    node = 0
    for byte in data:
        node, symbol = _STEPS[node << 4 | byte >> 4]
        symbols += symbol
        node, symbol = _STEPS[node << 4 | byte & 15]
        symbols += symbol
    if node not in _LAST:
        raise HeaderError("a string is padded wrongly, or holds the end symbol")
    return symbols.decode("latin-1")
