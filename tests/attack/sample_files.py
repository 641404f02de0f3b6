"""Hostile ``.npz`` files of samples, which the front end itself reads; each with its refusal."""

import io
import random
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.marker)!r}, 'w')",)


def npy(descr: str, shape: str, content: bytes = b"") -> bytes:
    """An array whose header says these things."""
    return headed(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}", content)


def headed(header: str, content: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """An array with any header."""
    text = header.encode("latin1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + content


def npz(member: bytes, method: int = zipfile.ZIP_STORED, name: str = "x.npy") -> bytes:
    """An archive of one array."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.writestr(name, member)
    return target.getvalue()


def sound() -> bytes:
    target = io.BytesIO()
    np.savez_compressed(target, x=np.ones((2, 3), np.float32))
    return target.getvalue()


def pickled(marker: Path) -> bytes:
    """Python objects whose reading would run code."""
    target = io.BytesIO()
    np.savez(target, x=np.array([Payload(marker)], dtype=object))
    return target.getvalue()


def damaged(seed: int) -> bytes:
    """Sound samples with a few bytes changed."""
    rng, data = random.Random(seed), bytearray(sound())
    for _ in range(rng.choice((1, 2, 6))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


Make = Callable[[Path], bytes]
SAMPLES: Mapping[str, tuple[Make, str]] = {
    "pickles": (pickled, "pickles"),
    "pickles in a field": (
        lambda _: npz(npy("[('a', '<f4'), ('b', 'O')]", "(1,)", bytes(12))),
        "cannot be read",
    ),
    "pickles without content": (lambda _: npz(npy("'|O'", "(1,)")), "pickles"),
    "fewer bytes than it says": (
        lambda _: npz(npy("'<f4'", "(4, 4)", bytes(8))),
        "other bytes than its shape",
    ),
    "a petabyte": (lambda _: npz(npy("'<f4'", "(1099511627776, 1024)")), "more than"),
    "no array": (lambda _: npz(b"not an array"), "cannot be read"),
    "a text": (lambda _: npz(b"hello", name="readme.txt"), "no array"),
    "a negative extent": (lambda _: npz(npy("'<f4'", "(-5, 4)", bytes(900))), "cannot be read"),
    "a negative extent over a bomb": (
        lambda _: npz(npy("'<f4'", "(-5, 4)", bytes(64 << 20)), zipfile.ZIP_DEFLATED),
        "cannot be read",
    ),
    "a bomb": (
        lambda _: npz(npy("'<f4'", "(2, 3)", bytes(64 << 20)), zipfile.ZIP_DEFLATED),
        "other bytes than its shape",
    ),
    "elements of no bytes": (lambda _: npz(npy("'|V0'", "(3, 4)")), "give numbers"),
    "seventy dimensions": (lambda _: npz(npy("'<f4'", str((1,) * 70), bytes(4))), "70 dimensions"),
    "nothing times 2^62": (lambda _: npz(npy("'<f4'", f"(3, 0, {1 << 62})")), "cannot be read"),
    "an extent of 2^80": (lambda _: npz(npy("'<f4'", f"({1 << 80},)")), "cannot be read"),
    "minus signs": (lambda _: npz(headed("-" * 9000 + "1")), "cannot be read"),
    "parentheses": (lambda _: npz(headed("(" * 9000)), "cannot be read"),
    "sums": (lambda _: npz(headed("1+" * 4000 + "1j")), "cannot be read"),
    "a header of 2^31": (
        lambda _: npz(b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31)),
        "a header of",
    ),
    "digits in thousands": (lambda _: npz(npy("'<f4'", f"({'1' * 9000}")), "cannot be read"),
    "extents in thousands": (lambda _: npz(npy("'<f4'", f"({'1,' * 4500}x")), "cannot be read"),
    "a truth for an extent": (lambda _: npz(npy("'<f4'", "(True,)", bytes(4))), "cannot be read"),
    "code for an extent": (
        lambda marker: npz(npy("'<f4'", f"(open({str(marker)!r}, 'w'),)")),
        "cannot be read",
    ),
    "a type in a type": (
        lambda _: npz(npy("[('a', " * 80 + "'<f4'" + ")]" * 80, "(1,)", bytes(4))),
        "cannot be read",
    ),
    "a name of 60,000": (lambda _: npz(npy("'<f4'", "(1,)"), name="x" * 60_000 + ".npy"), "array"),
    "packed with bzip2": (lambda _: npz(npy("'<f4'", "(1,)"), zipfile.ZIP_BZIP2), "unusual way"),
    "packed with lzma": (lambda _: npz(npy("'<f4'", "(1,)"), zipfile.ZIP_LZMA), "unusual way"),
    "an end of an archive only": (lambda _: npz(b"")[-22:], "no .npz file"),
    "a directory before the file": (
        lambda _: sound()[:-6] + struct.pack("<I", 1 << 30) + b"\0\0",
        "no .npz file",
    ),
}
"""Maker, told where code of its own would leave a file, and words of the refusal."""
