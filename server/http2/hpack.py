"""Header compression of HTTP/2 (RFC 7541): blocks of a peer to names and values.

Only reading: what the server sends is literal (``answer_headers``). The code words of appendix B
are the canonical ones of their lengths, so the lengths are all that is kept here.
"""

from __future__ import annotations

from collections import deque
from typing import Final

Field = tuple[str, str]

TABLE_BYTES: Final = 4096
"""Size of the table that every peer may use."""

FIELD_BYTES: Final = 32  # that a field counts beside its characters
_END: Final = 256  # symbol that only pads

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


def _tree() -> list[list[int]]:
    """Return the tree of code words: of each node what bits 0 and 1 lead to.

    That is a node, or for a symbol its complement (``~symbol``); node 0 is the root.
    """
    nodes = [[0, 0]]
    code = length = 0
    for symbol in sorted(range(257), key=lambda symbol: (_CODE_LENGTHS[symbol], symbol)):
        code <<= _CODE_LENGTHS[symbol] - length
        length = _CODE_LENGTHS[symbol]
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes[node][bit] = len(nodes)
                nodes.append([0, 0])
            node = nodes[node][bit]
        nodes[node][code & 1] = ~symbol
        code += 1
    return nodes


def _steps() -> list[tuple[int, bytes]]:
    """Return where four bits lead from each node, and the symbol on the way.

    Four bits end one code word at most: the shortest has five. The end symbol leads to a node that
    no string ends at and that nothing leads away from.
    """
    nodes = _tree()
    dead = len(nodes)
    steps = []
    for begin in range(dead):
        for bits in range(16):
            node, symbol = begin, b""
            for shift in (3, 2, 1, 0):
                node = nodes[node][bits >> shift & 1]
                if node == ~_END:
                    node = dead
                    break
                if node < 0:
                    node, symbol = 0, bytes([~node])
            steps.append((node, symbol))
    return steps + [(dead, b"")] * 16


def _padding() -> frozenset[int]:
    """Return the nodes that a string may end at: up to seven bits, all of them set, lead there."""
    nodes, node, ends = _tree(), 0, [0]
    for _ in range(7):
        node = nodes[node][1]
        ends.append(node)
    return frozenset(ends)


_STEPS: Final = _steps()
_LAST: Final = _padding()


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
        self.decoded_fields = self.decoded_bytes = self.code_bytes = 0  # of all blocks

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
                size += len(field[0]) + len(field[1]) + FIELD_BYTES
                self.decoded_fields += 1
                self.decoded_bytes += len(field[0]) + len(field[1])
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
        self.code_bytes += length
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
