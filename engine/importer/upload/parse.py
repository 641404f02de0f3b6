"""The upload's bytes, checked before any library interprets them further.

    bytes ──protobuf──> ModelProto ──budgets──> ready to lower

Budgets come before onnx's checker and inliner, which themselves can be made to spin: thirty
functions that each call the next one twice stand for a billion nodes in two kilobytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from braid.core.errors import ModelImportError
from braid.engine.importer.upload.archive import EXPORT

MAX_NODES = 200_000  # functions expanded; the largest real models have some 20,000
MAX_NESTING = 16  # of subgraphs
MAX_TENSORS = 200_000

_PIECE_BYTES = 1 << 20

_OTHER_FORMATS = {
    b"\x1f\x8b": "a gzip archive",
    b"\x89HDF": "an HDF5 file (Keras?)",
    b"GGUF": "a GGUF file",
    b"\x80\x02": f"a pickle, which would have to be run; {EXPORT}",
    b"\x80\x04": f"a pickle, which would have to be run; {EXPORT}",
}


def parse_model(data: bytes, external: frozenset[str] = frozenset()) -> ModelProto:
    """Read the bytes of an ONNX file.

    Args:
        data: the file.
        external: names of the files beside it that may hold tensors.

    Raises:
        ModelImportError: not an ONNX model, or over a structural budget; says why.
    """
    model = _decoded(data)
    _check_tensors(model, external)
    check_structure(model)
    return model


def read_model(file: Path) -> bytes:
    """All of a file, piece by piece.

    A kernel built without preemption keeps the core for as long as one read takes: 0.1 to 0.3 s
    were seen for 95 MB, in which nobody could answer a request there.
    """
    with file.open("rb", buffering=0) as pieces:
        return b"".join(iter(lambda: pieces.read(_PIECE_BYTES), b""))


def complaint(upload: Path) -> str:
    """What onnx's own checker finds wrong with a file that ``parse_model`` took; "" if nothing."""
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


@dataclass(frozen=True, slots=True)
class _Level:
    """A graph and how many subgraphs it is inside."""

    nodes: list[NodeProto]
    depth: int


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(nodes: list[NodeProto]) -> Iterator[NodeProto]:
    """Nodes of a graph and of its subgraphs, without recursion.

    Raises:
        ModelImportError: nested too deep.
    """
    pending = [_Level(nodes, 0)]
    while pending:
        level = pending.pop()
        if level.depth > MAX_NESTING:
            raise ModelImportError(f"subgraphs are nested more than {MAX_NESTING} deep")
        for node in level.nodes:
            yield node
            pending += [_Level(list(g.node), level.depth + 1) for g in _subgraphs(node)]


def check_structure(model: ModelProto) -> None:
    """Bound the number of nodes, counting every function call as the function's body.

    Raises:
        ModelImportError: over the budget, nested too deep, or functions that call themselves.
    """
    functions = {(f.domain, f.name): f for f in model.functions}
    if len(functions) != len(model.functions):
        raise ModelImportError("two local functions of the model have the same name")
    sizes: dict[tuple[str, str], int] = {}
    for key in _calls_first(functions):
        sizes[key] = _expanded_size(list(functions[key].node), sizes)
    _expanded_size(list(model.graph.node), sizes)


def _expanded_size(nodes: list[NodeProto], sizes: dict[tuple[str, str], int]) -> int:
    count = 0
    for node in _all_nodes(nodes):
        count += 1 + sizes.get((node.domain, node.op_type), 0)
        if count > MAX_NODES:
            raise ModelImportError(
                f"the model has more than {MAX_NODES} nodes (local functions expanded)"
            )
    return count


def _calls_first(
    functions: dict[tuple[str, str], onnx.FunctionProto],
) -> Iterator[tuple[str, str]]:
    """Functions, each after those it calls.

    Raises:
        ModelImportError: a function calls itself, directly or not.
    """
    calls = {
        key: {(n.domain, n.op_type) for n in _all_nodes(list(f.node))} & functions.keys()
        for key, f in functions.items()
    }
    while calls:
        ready = [key for key, called in calls.items() if not called]
        if not ready:
            names = ", ".join(sorted(name for _, name in calls)[:5])
            raise ModelImportError(f"local functions of the model call themselves: {names}")
        for key in ready:
            del calls[key]
            yield key
        for called in calls.values():
            called.difference_update(ready)


def _check_tensors(model: ModelProto, external: frozenset[str]) -> None:
    """Refuse data outside the upload; every tensor anywhere in the model is looked at.

    Raises:
        ModelImportError: naming the tensor and the place it points to.
    """
    for count, tensor in enumerate(all_tensors(model)):
        if count > MAX_TENSORS:
            raise ModelImportError(f"the model has more than {MAX_TENSORS} tensors")
        if tensor.data_location != TensorProto.EXTERNAL and not tensor.external_data:
            continue
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        place = places[0] if places else ""
        if len(places) == 1 and place in external:
            continue
        inside = "leaves the upload" if _leaves(place) else "is not part of the upload"
        raise ModelImportError(
            f"tensor {tensor.name!r} keeps its data in {place!r}, which {inside}; save the model "
            "as one file (onnx.save_model(..., save_as_external_data=False)), or upload a zip of "
            "the model and its data files"
        )


def _leaves(place: str) -> bool:
    path = os.path.normpath(place.replace("\\", "/"))
    return os.path.isabs(path) or path.startswith("..") or place[1:2] == ":"


def all_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model: initialisers, attributes, those of subgraphs and functions."""
    bodies = [list(model.graph.node), *(list(f.node) for f in model.functions)]
    yield from _graph_tensors(model.graph)
    for body in bodies:
        for node in _all_nodes(body):
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                sparse = [*attribute.sparse_tensors]
                if attribute.HasField("sparse_tensor"):
                    sparse.append(attribute.sparse_tensor)
                for tensor in sparse:
                    yield from (tensor.values, tensor.indices)
            for graph in _subgraphs(node):
                yield from _graph_tensors(graph)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield from (tensor.values, tensor.indices)
