"""The upload's bytes, checked before any library interprets them further.

    bytes ──protobuf──> ModelProto ──budgets──> ready to lower

Budgets come before onnx's checker and inliner (``braid.engine.onnx.structure``).
"""

import io
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto

from braid.core.errors import ModelImportError
from braid.core.external_data import name_inside
from braid.engine.importer.upload.archive import Archive
from braid.engine.onnx.structure import DEFAULT_DOMAINS, all_nodes, check_structure, subgraphs

EXPORT = (
    "export the model instead: torch.export.save(torch.export.export(model, (example,)), "
    "'model.pt2'), or torch.onnx.export(model, (example,), 'model.onnx', external_data=False)"
)
MAX_TENSORS = 200_000

_PIECE_BYTES = 1 << 20
_UNUSED_OPSET = 13

_OTHER_FORMATS = {
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file (Keras?)",
    b"GGUF": "a GGUF file",
    b"\x80\x02": f"a pickle, which would have to be run; {EXPORT}",
    b"\x80\x04": f"a pickle, which would have to be run; {EXPORT}",
}


def parse_model(data: bytes, external: frozenset[str] = frozenset()) -> ModelProto:
    """Read an ONNX file; ``external``: names of the files beside it that may hold tensors.

    Raises ``ModelImportError`` if it is no ONNX model, or over a structural budget.
    """
    model = _decoded(data)
    _check_tensors(model, external)
    check_structure(model)
    _state_opset(model)
    return model


def _state_opset(model: ModelProto) -> None:
    """State a set of ONNX's own operators where a file of other ones (ai.onnx.ml) states none."""
    stated = (opset.domain for opset in model.opset_import)
    used = (node.domain for node in all_nodes(model.graph.node))
    if not any(domain in DEFAULT_DOMAINS for domain in (*stated, *used)):
        model.opset_import.add(domain="", version=_UNUSED_OPSET)


def read_model(file: Path) -> bytes:
    """By 1 MiB: without preemption a kernel keeps the core for as long as one read takes.

    0.1 to 0.3 s were seen for 95 MB, during which that core answered no request.
    """
    whole = io.BytesIO()  # joining a list of pieces takes the file's size twice
    with file.open("rb", buffering=0) as pieces:
        while piece := pieces.read(_PIECE_BYTES):
            whole.write(piece)
    return whole.getvalue()


def complaint(upload: Path) -> str:
    """First complaint of onnx's checker about a file that ``parse_model`` took; "" if none."""
    try:
        onnx.checker.check_model(read_model(upload))  # faster than writing the parsed model again
    except (onnx.checker.ValidationError, ValueError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def _decoded(data: bytes) -> ModelProto:
    if not data:
        raise ModelImportError("the upload is empty")
    for magic, what in _OTHER_FORMATS.items():
        if data.startswith(magic):
            raise ModelImportError(f"not an ONNX model: the file looks like {what}")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelImportError(
            "not an ONNX model: the file is truncated, damaged, nested absurdly deep, or of "
            "another format"
        ) from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelImportError("not an ONNX model: the file has no graph with outputs")
    return model


def _check_tensors(model: ModelProto, external: frozenset[str]) -> None:
    """Raise ``ModelImportError`` if any tensor, in subgraphs too, points outside the upload."""
    for count, tensor in enumerate(all_tensors(model)):
        if count > MAX_TENSORS:
            raise ModelImportError(f"the model has more than {MAX_TENSORS} tensors")
        if tensor.data_location != TensorProto.EXTERNAL and not tensor.external_data:
            continue
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        place = places[0] if places else ""
        name = name_inside(place)
        if len(places) == 1 and name in external:
            continue
        where = "leaves the upload" if place and not name else "is not part of the upload"
        raise ModelImportError(
            f"tensor {tensor.name!r} keeps its data in {place!r}, which {where}; save the model "
            "as one file (onnx.save_model(..., save_as_external_data=False)), or upload a zip of "
            "the model and its data files"
        )


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: initialisers, attributes, those of subgraphs and functions."""
    yield from _graph_tensors(model.graph)
    for body in (model.graph.node, *(function.node for function in model.functions)):
        for node in all_nodes(body):
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                sparse = [*attribute.sparse_tensors]
                if attribute.HasField("sparse_tensor"):
                    sparse.append(attribute.sparse_tensor)
                for tensor in sparse:
                    yield from (tensor.values, tensor.indices)
            for graph in subgraphs(node):
                yield from _graph_tensors(graph)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield from (tensor.values, tensor.indices)


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
