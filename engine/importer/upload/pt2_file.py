"""Files inside a ``.pt2``: one graph, weights as raw bytes, and files that are refused.

<name>/models/model.json                        the graph
<name>/data/weights/model_weights_config.json   weight -> file, element type, sizes, strides
<name>/data/weights/weight_0                    raw little-endian bytes
<name>/data/constants/...                       the same for constants
<name>/data/sample_inputs/model.pt              a pickle; never opened, for nothing needs it
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._export.serde import serialize

from braid.core.errors import ModelImportError
from braid.engine.importer.upload.archive import Archive
from braid.engine.pt2.document import MAX_JSON_BYTES, Program, read_program

_MAX_CONFIG_BYTES = 64 << 20
_STRIDED = 7
_CODE = ("data/aotinductor/", "data/executorch/", "data/mtia", "extra/code/")
_LIBRARIES = (".so", ".o", ".cubin", ".hsaco", ".dll", ".dylib", ".cpp", ".py", ".ptx")


def read_container(archive: Archive) -> tuple[Program, dict[str, Tensor]]:
    """The program, and weights by name; ``ModelImportError`` if it is not a .pt2 of plain data."""
    root = _root(archive)
    _refuse_code(archive, root)
    models = [name for name in archive.names if name.startswith(f"{root}models/")]
    if len(models) != 1:
        raise ModelImportError(f"the .pt2 holds {len(models)} models, only one can be imported")
    stem = models[0].removeprefix(f"{root}models/").removesuffix(".json")
    program = read_program(archive.read(models[0], MAX_JSON_BYTES))
    payloads: dict[str, Any] = {}
    for folder in ("weights", "constants"):
        config = f"{root}data/{folder}/{stem}_{folder}_config.json"
        if config in archive.names:
            entries = _config(archive, config)
            payloads |= {k: (f"{root}data/{folder}/", v) for k, v in entries.items()}
    storages: dict[str, Tensor] = {}
    weights = {}
    for weight in sorted(program.weights.names):
        if weight not in payloads:
            raise ModelImportError(f"the .pt2 has no data for {weight!r}")
        folder, payload = payloads[weight]
        described = _strided(weight, payload)
        file = folder + described.file
        if file not in storages:
            storages[file] = _storage(archive, file)
        weights[weight] = described.of(storages[file], weight)
    return program, weights


def _root(archive: Archive) -> str:
    """Name of the one top folder, with its slash."""
    roots = {name.partition("/")[0] for name in archive.names}
    if len(roots) != 1:
        raise ModelImportError("the .pt2 has several top folders")
    root = f"{roots.pop()}/"
    for name, expected in (("archive_format", b"pt2"), ("byteorder", b"little")):
        if archive.read(root + name, 64).strip() != expected:
            raise ModelImportError(f"the .pt2 states a {name} other than {expected.decode()}")
    return root


def _refuse_code(archive: Archive, root: str) -> None:
    for name in archive.names:
        inner = name.removeprefix(root)
        if inner.startswith(_CODE) or inner.endswith(_LIBRARIES):
            raise ModelImportError(
                f"the .pt2 holds compiled code ({inner}), which is never run; save the exported "
                "program itself with torch.export.save"
            )
        if inner.startswith("data/constants/") and "_obj_" in inner:
            raise ModelImportError(
                f"the .pt2 holds an opaque object ({inner}), which could only be unpickled"
            )


def _config(archive: Archive, name: str) -> Mapping[str, Any]:
    try:
        entries = json.loads(bytes(archive.read(name, _MAX_CONFIG_BYTES)))["config"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ModelImportError(f"{name} is malformed: {error!r}") from error
    if not isinstance(entries, dict):
        raise ModelImportError(f"{name} is malformed")
    for weight, payload in entries.items():
        if not isinstance(payload, dict) or payload.get("use_pickle") is not False:
            raise ModelImportError(
                f"{weight!r} is stored as a pickle, which is never loaded; only plain, strided "
                "tensors are read"
            )
    return entries


@dataclass(frozen=True, slots=True)
class _Strided:
    """A weight as a view of the bytes of a file; strides and offset count elements."""

    file: str  # in the folder of its config
    dtype: torch.dtype
    sizes: list[int]
    strides: list[int]
    offset: int

    def of(self, storage: Tensor, weight: str) -> Tensor:
        """A view of the file; ``ModelImportError`` if strides reach outside, or overlap."""
        sizes, kind = self.sizes, self.dtype
        elements = storage.numel() // kind.itemsize
        steps = zip(sizes, self.strides, strict=True)
        reach = self.offset + sum((size - 1) * stride for size, stride in steps) + 1
        needed = 0 if 0 in sizes else max(reach, math.prod(sizes))
        if needed > elements:
            raise ModelImportError(
                f"weight {weight!r} ({self.dtype}{sizes}, strides {self.strides}, offset "
                f"{self.offset}) needs {needed * kind.itemsize} bytes, its file has "
                f"{storage.numel()}"
            )
        if 0 in sizes:
            return torch.empty(sizes, dtype=kind)
        whole = storage[: elements * kind.itemsize].view(kind)
        return whole.as_strided(sizes, self.strides, self.offset)


def _strided(weight: str, payload: Mapping[str, Any]) -> _Strided:
    """``ModelImportError`` if it is malformed, no strided tensor, or names a file elsewhere."""
    try:
        meta, layout = payload["tensor_meta"], payload["tensor_meta"]["layout"]
        if meta["dtype"] not in serialize._SERIALIZE_TO_TORCH_DTYPE:
            raise ModelImportError(f"weight {weight!r} has an element type that is not read")
        strided = _Strided(
            str(payload["path_name"]),
            serialize._SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]],
            [int(size["as_int"]) for size in meta["sizes"]],
            [int(stride["as_int"]) for stride in meta["strides"]],
            int(meta["storage_offset"]["as_int"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelImportError(f"the description of weight {weight!r} is malformed") from error
    numbers = [0, strided.offset, *strided.sizes, *strided.strides]
    if layout != _STRIDED or len(strided.sizes) != len(strided.strides) or min(numbers) < 0:
        raise ModelImportError(f"weight {weight!r} is not a plain strided tensor")
    if "/" in strided.file or strided.file.startswith("."):
        raise ModelImportError(f"weight {weight!r} lies in {strided.file!r}, outside its folder")
    return strided


def _storage(archive: Archive, name: str) -> Tensor:
    data = archive.read(name)
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
