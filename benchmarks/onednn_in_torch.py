"""The oneDNN that torch has inside, whose functions are found in the symbol table of its library.

    libtorch_cpu.so ──.symtab──> name, offset of each dnnl_ function ──load address──> InsideTorch

torch links oneDNN statically and exports none of its functions, but its library keeps the table
that debuggers read.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from braid.engine.onednn.functions import Functions, checked

_SECTIONS, _SECTION_COUNT, _SECTION = 40, 60, struct.Struct("<IIQQQQIIQQ")  # of ELF64
_SYMTAB, _FUNCTION, _LINK_MAP = 2, 2, 2
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"),
     ("size", "<u8")]
)  # fmt: skip
_PREFIX = b"dnnl_"


class InsideTorch:
    """Functions of oneDNN by name, as of a ``ctypes.CDLL``; also those that torch links against.

    Raises:
        OSError: torch's library has no such table.
    """

    def __init__(self) -> None:
        path = Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so"
        self._library = ctypes.CDLL(str(path))
        start, offsets = _load_address(self._library), _function_offsets(path)
        self._addresses = {name: start + offset for name, offset in offsets.items()}
        if not self._addresses:
            raise OSError(f"{path} names no function of oneDNN")

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(_PREFIX.decode()):
            return getattr(self._library, name)
        if name not in self._addresses:
            raise AttributeError(name)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(self._addresses[name])
        setattr(self, name, function)
        return function

    def functions(self) -> Functions:
        set_handle = self._addresses["dnnl_memory_set_data_handle"]
        return checked(self, ctypes.PYFUNCTYPE(ctypes.c_int)(set_handle))


def _load_address(library: ctypes.CDLL) -> int:
    """Distance between addresses in the file and in memory."""
    link_map = ctypes.c_void_p()
    handle = ctypes.c_void_p(library._handle)
    if ctypes.CDLL(None).dlinfo(handle, _LINK_MAP, ctypes.byref(link_map)) or not link_map.value:
        raise OSError("torch's library cannot be found in memory")
    return ctypes.c_size_t.from_address(link_map.value).value


def _function_offsets(path: Path) -> dict[str, int]:
    """Address in the file of each function of oneDNN's C interface.

    Cost: some 75 ms for 530,000 symbols.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        (first,) = struct.unpack_from("<Q", image, _SECTIONS)
        (count,) = struct.unpack_from("<H", image, _SECTION_COUNT)
        sections = [_SECTION.unpack_from(image, first + _SECTION.size * i) for i in range(count)]
        tables = [section for section in sections if section[1] == _SYMTAB]
        if not tables:
            return {}
        (_, _, _, _, offset, size, names, *_) = tables[0]
        start, length = sections[names][4:6]
        content = image[offset : offset + size]
        return _named(np.frombuffer(content, _SYMBOL), image[start : start + length])


def _named(symbols: np.ndarray[Any, Any], names: bytes) -> dict[str, int]:
    letters = np.frombuffer(names, np.uint8)
    functions = symbols[(symbols["info"] & 15 == _FUNCTION) & (symbols["value"] > 0)]
    for position, letter in enumerate(_PREFIX):
        functions = functions[letters[functions["name"] + position] == letter]
    return {
        names[name : names.index(b"\0", name)].decode(): value
        for name, value in zip(functions["name"].tolist(), functions["value"].tolist(), strict=True)
    }
