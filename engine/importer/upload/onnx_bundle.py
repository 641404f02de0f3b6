"""An ONNX model that keeps its weights in other files: a zip of the model and the files it names.

    model.onnx            in no folder; no other file is named so that is not its data
    model.onnx.data       named by the model as a location, also as ./model.onnx.data; any number

The members are written as fresh regular files into the import's own folder, which is where ONNX
Runtime looks for them; nothing outside it can be named.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto, TensorProto

from braid.core.errors import ModelImportError
from braid.core.external_data import name_inside
from braid.engine.importer.upload.archive import Archive
from braid.engine.importer.upload.onnx_file import EXPORT, all_tensors, parse_model, read_model


def unpack_bundle(archive: Archive, work: Path) -> tuple[ModelProto, Path]:
    """The model with all weights in memory, and its file; may raise ``ModelImportError``."""
    if any(name.endswith("/data.pkl") for name in archive.names):
        raise ModelImportError(
            "the archive is a PyTorch checkpoint or TorchScript (.pt), whose pickle or code would "
            f"have to be run; {EXPORT}"
        )
    folder = work / "bundle"
    folder.mkdir(mode=0o700)
    file = archive.unpack(folder)
    return read_with_data(file, frozenset(archive.names) - {file.name}), file


def read_with_data(file: Path, data: frozenset[str] = frozenset()) -> ModelProto:
    """``data``: names of the files beside it, all in use, else ``ModelImportError``."""
    model = parse_model(read_model(file), external=data)
    _fill(model, file.parent, data)
    return model


def _fill(model: ModelProto, folder: Path, names: frozenset[str]) -> None:
    used = set()
    for tensor in all_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = name_inside(entries["location"])
        used.add(name)
        tensor.raw_data = _part(folder / name, tensor.name, entries)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    if names - used:
        raise ModelImportError(f"the model does not use {sorted(names - used)[:5]} of the archive")


def _part(file: Path, tensor: str, entries: dict[str, str]) -> bytes:
    size = file.stat().st_size
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries["length"]) if entries.get("length") else size - offset
    except ValueError:
        raise ModelImportError(f"tensor {tensor!r}: offset and length must be numbers") from None
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelImportError(
            f"tensor {tensor!r} keeps bytes {offset} to {offset + length} in {file.name!r}, which "
            f"has {size}"
        )
    with file.open("rb") as data:
        data.seek(offset)
        return data.read(length)
