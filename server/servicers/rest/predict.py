"""Bodies of KServe's V1 protocol, which is TensorFlow Serving's: tensors as nested lists.

    {"instances": [row, ...]}        of the only input, or of all: {"INPUT": its row, ...}
        ──read_predict──> {"predictions": [row, ...]}
    {"inputs": tensor of the only input, or {"INPUT": tensor, ...}}
        ──read_predict──> {"outputs": tensor of the only output, or {"OUTPUT": tensor, ...}}

Outputs whose first extent is not the number of instances are whole tensors among ``predictions``.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import Work, joined
from braid.core.strings import elements_of
from braid.core.tensor import BYTES, TensorType
from braid.server.servicers.oip.contents import DTYPES
from braid.server.servicers.oip.tensors import SplitMessage
from braid.server.servicers.oip.wire import messages
from braid.server.servicers.rest.inference import MAX_JSON_BYTES, RestRequest
from braid.server.servicers.rest.json_reading import JsonBody, Numbers, read_json
from braid.server.servicers.rest.json_tensors import raw_of
from braid_client.wire_fields import Part

SENT_BYTES = 1 << 16
"""Text that is sent as one piece, but for the last one."""


def read_predict(
    body: bytes, name: str, version: str, specs: Mapping[str, TensorType]
) -> Work[RestRequest]:
    """Read a body for a model with these inputs.

    Raises InvalidRequest: it does not hold together.
    """
    if len(body) > MAX_JSON_BYTES:
        raise InvalidRequest(f"the body has more than {MAX_JSON_BYTES} bytes; send tensors by v2")
    json_body = yield from read_json(body)
    given = json_body.given
    by_rows = "instances" in given
    if by_rows == ("inputs" in given):
        raise InvalidRequest("give 'instances', a list of rows, or 'inputs', whole tensors")
    message = messages.ModelInferRequest(model_name=name, model_version=version)
    contents, shape = list[Part](), tuple[int, ...]((0,))
    values = given["instances" if by_rows else "inputs"]
    if by_rows and json_body.list_of(values) is None:
        raise InvalidRequest("'instances' is no list")
    for key, value in _columns(json_body, values, specs, by_rows).items():
        if key not in specs:
            raise InvalidTensor(f"the model has no input {key!r}; its inputs: {', '.join(specs)}")
        shape, raw = yield from _tensor(json_body, key, specs[key].dtype, value)
        message.inputs.add(name=key, datatype=specs[key].dtype, shape=shape)
        contents.append(raw)
    texts = partial(_texts, rows=shape[0] if by_rows else None)
    return RestRequest(message, contents, texts=texts)


def _columns(
    body: JsonBody, values: Any, specs: Mapping[str, TensorType], by_rows: bool
) -> dict[str, Any]:
    """Return the values by input; of rows, a list of the rows of each."""

    def is_object(value: Any) -> bool:
        return isinstance(value, dict) and body.list_of(value) is None

    if not by_rows and is_object(values):
        return dict(values)
    if by_rows and isinstance(values, list) and values and all(map(is_object, values)):
        if any(row.keys() != values[0].keys() for row in values):
            raise InvalidRequest("the instances do not all have the same inputs")
        return {name: [row[name] for row in values] for name in values[0]}
    if len(specs) != 1:
        raise InvalidRequest(f"say which input is meant: objects with {', '.join(specs)}")
    return {next(iter(specs)): values}


def _tensor(
    body: JsonBody, name: str, datatype: str, value: Any
) -> Work[tuple[tuple[int, ...], bytes]]:
    """Return shape and raw form of a number, string or nested list."""
    if isinstance(value, list) and any(isinstance(row, dict) for row in value):  # long rows
        shapes, parts = set(), []
        for row in value:
            shape, raw = yield from _tensor(body, name, datatype, row)
            shapes.add(shape)
            parts.append(raw)
        if len(shapes) > 1:
            raise InvalidTensor(f"input {name!r} has rows of different shapes")
        return (len(parts), *shape), (yield from joined(parts))
    data = body.list_of(value)
    raw = yield from raw_of(name, datatype, [value] if data is None else data)
    return _shape(data), raw


def _shape(data: Any) -> tuple[int, ...]:
    """Return the extents of nested lists, by the first list of each depth."""
    if isinstance(data, Numbers):
        return data.shape or ()
    shape = list[int]()
    while isinstance(data, list):
        shape.append(len(data))
        data = data[0] if data else None
    return tuple(shape)


def _texts(reply: SplitMessage, _: object, elements: int, *, rows: int | None) -> Iterator[bytes]:
    """Yield the JSON of an answer in pieces; ``rows`` is the number of instances, if any."""
    outputs = zip(reply.message.outputs, reply.raw_contents, strict=True)
    arrays = {output.name: _array(output, content) for output, content in outputs}
    shown: Any = arrays
    if len(arrays) == 1:
        (shown,) = arrays.values()
    elif rows is not None and all(array.shape[:1] == (rows,) for array in arrays.values()):
        shown = ({name: array[row, ...] for name, array in arrays.items()} for row in range(rows))
    pieces, size = list[bytes](), 0
    for piece in _pieces({"outputs" if rows is None else "predictions": shown}, elements):
        pieces.append(piece)
        size += len(piece)
        if size >= SENT_BYTES:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)


def _array(output: Any, content: Part) -> np.ndarray[Any, Any]:
    """Return an output's elements. Raises InvalidRequest: they are bytes that are no text."""
    if output.datatype != BYTES:
        return np.frombuffer(content, DTYPES[output.datatype]).reshape(output.shape)
    try:
        texts = [str(text, "utf-8") for text in elements_of(content)]
    except UnicodeDecodeError:
        raise InvalidRequest(f"output {output.name!r} is no text; ask for it in v2") from None
    return np.array(texts, object).reshape(output.shape)


def _pieces(node: Any, elements: int) -> Iterator[bytes]:
    """Yield JSON of objects, rows and arrays, of which some thousand elements at a time."""
    between, end = (b"{", b"}") if isinstance(node, dict) else (b"[", b"]")
    if isinstance(node, dict):
        for name, value in node.items():
            yield between + orjson.dumps(name) + b":"
            yield from _pieces(value, elements)
            between = b","
    elif not isinstance(node, np.ndarray) or node.size > elements:
        step = elements * len(node) // node.size if isinstance(node, np.ndarray) else 0
        for part in (node[at : at + step] for at in range(0, len(node), step)) if step else node:
            yield between + (_lists(part)[1:-1] if step else b"")
            yield from () if step else _pieces(part, elements)
            between = b","
    else:
        yield _lists(node)
        return
    yield end if between == b"," else between + end


def _lists(array: np.ndarray[Any, Any]) -> bytes:
    values = (array.astype(np.float64) if array.dtype.kind in "fV" else array).tolist()
    text = orjson.dumps(values)
    # orjson writes null for NaN and infinities.
    return json.dumps(values).encode() if b"null" in text else text
