"""Rows on their way through a batch: cut from requests, laid into a slot, cut out again."""

import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from braid.core.errors import WorkerFault
from braid.core.inputs import Content, GivenTensor, ShapeClass
from braid.core.padding import PaddedAxis, cut, length_of, pad
from braid.core.pieces import PIECE_BYTES, Work, finished, joined
from braid.core.strings import Strings, elements_of, length_prefixed
from braid.core.tensor import BYTES, DTYPE_BYTES, TensorType
from braid.engine.link.messages import RunDone
from braid.engine.link.shared_memory import Field
from braid.server.devices.executables import Executable
from braid.server.inference.batching.queues import Piece
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    CheckedRequest,
    InferenceResult,
    OutputTensor,
    WriteReply,
)
from braid.server.inference.slot_heap import SlotHeap, heap_bytes, places_of

LOOKED_AT_BYTES = 2 << 20
"""Most bytes of rows that are looked at: of more, a part has left the nearest cache."""

FEW_BYTES = 256

_FLOATS: Mapping[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
_OTHER_FLOATS = frozenset({"FP16", "BF16"})


@dataclass(slots=True)
class BatchRun:
    """Batch in its slot, with the answer that its device will give."""

    model: ModelReplica
    ready: Executable
    offset: int
    pieces: Sequence[Piece]  # those still waited for when it was sent
    size: int  # in rows, with padding; 1 without a batch axis
    sent_ns: int
    prepare_ns: int  # until what runs it was prepared, before it was sent
    shape_class: ShapeClass  # that it runs in: no shorter than the pieces' along any axis
    rows: int = 0  # of the pieces
    answer: Awaitable[RunDone] | None = None  # None: nothing was left to run


def write_rows(
    memory: memoryview,
    offset: int,
    ready: Executable,
    pieces: Sequence[Piece],
    axis: PaddedAxis | None = None,
) -> bool:
    """Copy every piece's rows into the slot; rows of padding are zeroed, of integers repeated.

    In a slot with a heap all are repeated. Shorter ones are padded along ``axis``. Returns True if
    all inputs are known to be finite, which is looked at only if the executable needs that. Raises
    WorkerFault: the rows that were copied are not those that will be handed out.
    """
    heap: SlotHeap | None = None
    is_finite = ready.needs_finite and not ready.layout.has_heap
    if ready.layout.has_heap:
        heap = SlotHeap(memory, ready, offset)
        heap.begin(heap_bytes(ready, pieces))
    for name, place in ready.layout.inputs.items():
        start = offset + place.offset
        end = start + place.size_bytes
        for piece in pieces:
            to, content = memory[start:end], piece.request.inputs[name]
            if heap is not None and isinstance(content, Strings):
                size = _write_strings(to, piece, content, heap)
            elif axis is not None and name in axis.inputs:
                size = _write_longer(to, piece, name, place, axis)
            else:
                size = _write_piece(to, piece, content)
            is_finite = is_finite and _is_finite(memory[start : start + size], place.spec.dtype)
            start += size
        _check_rows(place, start - offset - place.offset, pieces)
        if start == end:
            continue
        if heap is not None or "INT" in place.spec.dtype:
            _repeat_last_row(memory, start, end, place)
        else:
            memory[start:end] = bytes(end - start)
    return is_finite


def _write_longer(
    memory: memoryview, piece: Piece, name: str, place: Field, axis: PaddedAxis
) -> int:
    """Do as ``_write_piece``, padded along the axis to what the slot has."""
    data, shape_class = piece.request.inputs[name], piece.request.shape_class
    to = place.shape[axis.inputs[name].dimension]
    if length_of(shape_class, axis) == to:
        return _write_piece(memory, piece, data)
    assert isinstance(data, bytes | memoryview), "what is stored elsewhere is not padded"
    spec = dict(shape_class.inputs)[name]
    row = len(data) // piece.request.rows
    rows = memoryview(data)[piece.first_row * row :][: piece.rows * row]
    given = GivenTensor(name, spec.dtype, (piece.rows, *map(int, spec.shape[1:])), rows)
    (given,) = pad([given], axis, to)
    assert isinstance(given.data, bytes)
    memory[: len(given.data)] = given.data
    return len(given.data)


def _repeat_last_row(memory: memoryview, start: int, end: int, place: Field) -> None:
    """Fill the rows from ``start`` to ``end`` with the one before; zeros if there is none.

    A model may refuse what no caller has sent: zero as a divisor, a string that it does not know.
    """
    if end - start == place.size_bytes:
        memory[start:end] = bytes(place.size_bytes)
    elif start < end:
        row = place.size_bytes // place.shape[0]
        memory[start:end] = bytes(memory[start - row : start]) * ((end - start) // row)


def _check_rows(place: Field, copied_bytes: int, pieces: Sequence[Piece]) -> None:
    """Raise WorkerFault unless each piece brought as many rows as it is given of the outputs.

    A request without rows brings none and is given none, so its piece is one of padding.
    """
    if len(pieces) == 1 and not pieces[0].request.is_empty and copied_bytes == place.size_bytes:
        return
    rows = sum(0 if piece.request.is_empty else piece.rows for piece in pieces)
    are_mixed = len({piece.request.is_empty for piece in pieces}) > 1
    if are_mixed or copied_bytes * place.shape[0] != rows * place.size_bytes:
        raise WorkerFault("the rows of a batch do not add up, so it is not run; report this")


def slot_bytes(ready: Executable, pieces: Sequence[Piece]) -> int:
    layout = ready.layout
    return layout.size_bytes + (heap_bytes(ready, pieces) if layout.has_heap else 0)


def _write_strings(memory: memoryview, piece: Piece, content: Strings, heap: SlotHeap) -> int:
    """Copy a piece's strings to the heap and their places to ``memory``; returns these bytes."""
    row = len(content.ends) // piece.request.rows
    first = piece.first_row * row
    places = heap.add(content, first, first + piece.rows * row).tobytes()
    memory[: len(places)] = places
    return len(places)


def _is_finite(memory: memoryview, dtype: str) -> bool:
    """True if no element is NaN or infinite; False also if that is not known.

    What was just copied is still in the caches: 600 KB take 15 us here, and 120 to 190 us in the
    worker.
    """
    if dtype not in _FLOATS or not memory:
        return dtype not in _OTHER_FLOATS
    if len(memory) > LOOKED_AT_BYTES:
        return False
    if len(memory) <= FEW_BYTES:  # a tenth of the time that NumPy takes
        return math.isfinite(sum(memory.cast("f" if dtype == "FP32" else "d")))
    total = np.einsum("i->", np.frombuffer(memory, _FLOATS[dtype]))  # a third of np.sum's time
    return math.isfinite(total)


def _write_piece(memory: memoryview, piece: Piece, data: Content) -> int:
    """Copy a piece's rows of one input to the beginning of ``memory``; returns the bytes copied."""
    size_bytes = len(data)
    row = size_bytes // piece.request.rows
    first, size = piece.first_row * row, piece.rows * row
    if not isinstance(data, bytes | memoryview):
        assert not isinstance(data, Strings)
        data.read_into(memory[:size], first)
    elif size == size_bytes:
        memory[:size] = data
    else:
        memory[:size] = memoryview(data)[first : first + size]
    return size


@dataclass(frozen=True, slots=True)
class Draft:
    """Outcome of a piece as far as it is known before its run ends; ``outcome_of`` completes it."""

    piece: Piece
    row: int  # first one in the batch
    outputs: Mapping[str, OutputTensor] | None = None  # views of the slot; None: to be copied
    write: WriteReply | None = None  # of a whole request


def draft_of(memory: memoryview, run: BatchRun, piece: Piece, row: int) -> Draft:
    """Prepare the outcome of a piece, as far as it does not depend on what the outputs contain."""
    for name in piece.request.outputs:
        if _needs_copy(run, name, piece):
            return Draft(piece, row)
    outputs = finished(_outputs(memory, run, piece, row))
    return Draft(piece, row, outputs, _prepared_reply(run.model, piece, outputs))


def outcome_of(
    memory: memoryview,
    run: BatchRun,
    draft: Draft,
    compute_us: int,
    ended_ns: int,
) -> Work[InferenceResult]:
    """Cut one piece's rows out of the slot; a whole request's reply is written from the slot."""
    piece, outputs, write = draft.piece, draft.outputs, draft.write
    if outputs is None:
        outputs = yield from _outputs(memory, run, piece, draft.row)
        write = _prepared_reply(run.model, piece, outputs)
    if write is None:
        copies = {}
        for name, output in outputs.items():
            data = output.data
            if not isinstance(data, bytes):
                data = yield from joined([data])
            copies[name] = OutputTensor(output.dtype, output.shape, data)
        outputs = copies
    result = InferenceResult(
        outputs={} if write is not None else outputs,
        queue_us=(run.sent_ns - run.prepare_ns - piece.ticket.accepted_ns) // 1000,
        prepare_us=run.prepare_ns // 1000,
        transfer_us=max(0, (ended_ns - run.sent_ns) // 1000 - compute_us),
        compute_us=compute_us,
        batch_size=run.size,
        batch_rows=run.rows,
        plan_id=run.ready.to_run.plan_id,
    )
    if write is not None:
        result.reply = yield from write(result)
    return result


def _prepared_reply(
    model: ModelReplica, piece: Piece, outputs: Mapping[str, OutputTensor]
) -> WriteReply | None:
    """The reply of a piece that is a whole request; None: its outputs are copied and joined."""
    prepare = piece.request.reply
    return None if prepare is None or piece.rows < piece.request.rows else prepare(model, outputs)


def _outputs(
    memory: memoryview, run: BatchRun, piece: Piece, row: int
) -> Work[dict[str, OutputTensor]]:
    places, axes, outputs = run.ready.layout.outputs, run.model.output_axes, {}
    for name in piece.request.outputs:
        axis = None if run.shape_class.is_alone else axes.get(name)
        outputs[name] = yield from _cut(memory, run, places[name], axis, row, piece.rows)
        outputs[name] = _shortened(piece, run, name, outputs[name])
        if piece.request.is_empty and axis is not None:
            shape = outputs[name].shape
            none_of = (*shape[:axis], 0, *shape[axis + 1 :])
            outputs[name] = OutputTensor(outputs[name].dtype, none_of, b"")
    return outputs


def _shortened(piece: Piece, run: BatchRun, name: str, output: OutputTensor) -> OutputTensor:
    """Return an output without what follows padding; its rows are those of the piece."""
    own, axis = piece.request.shape_class, run.model.lengths.axis
    if axis is None or own == run.shape_class or name not in axis.outputs:
        return output
    specs = {name: (TensorType(output.dtype, output.shape), output.data)}
    spec, data = cut(specs, axis, length_of(own, axis))[name]
    return OutputTensor(spec.dtype, tuple(map(int, spec.shape)), data)


def _needs_copy(run: BatchRun, name: str, piece: Piece) -> bool:
    """True if a piece's rows of an output do not lie together in the slot, or are in the heap."""
    axis, layout = run.model.output_axes.get(name), run.ready.layout
    place = layout.outputs[name]
    padded = run.model.lengths.axis
    if padded and name in padded.outputs and piece.request.shape_class != run.shape_class:
        return True
    if layout.has_heap and (place.spec.dtype == BYTES or not place.spec.is_static):
        return True
    return bool(axis) and piece.rows != place.shape[axis or 0]


def _cut(
    memory: memoryview, run: BatchRun, place: Field, axis: int | None, row: int, rows: int
) -> Work[OutputTensor]:
    """Return rows ``row`` to ``row + rows`` of one output; all of it without a batch axis."""
    if run.ready.layout.has_heap and not place.spec.is_static:
        place = SlotHeap(memory, run.ready, run.offset).field(place, run.offset + place.offset)
    dtype, shape, start = place.spec.dtype, place.shape, run.offset + place.offset
    whole = memory[start : start + place.size_bytes]
    if dtype == BYTES:
        return (yield from _cut_strings(memory, run, place, axis, (row, rows)))
    if axis is None or rows == shape[axis]:
        return OutputTensor(dtype, shape, whole)
    factor = shape[axis] // run.size  # output rows for one request row, usually 1
    cut = (*shape[:axis], rows * factor, *shape[axis + 1 :])
    if axis == 0:
        row_bytes = place.size_bytes // run.size
        return OutputTensor(dtype, cut, whole[row * row_bytes : (row + rows) * row_bytes])
    row_bytes = DTYPE_BYTES[dtype] * math.prod(shape[axis + 1 :]) * factor
    blocks = np.frombuffer(whole, np.uint8).reshape(math.prod(shape[:axis]) or 1, -1)
    data = yield from _side_by_side([blocks[:, row * row_bytes : (row + rows) * row_bytes]])
    return OutputTensor(dtype, cut, data)


def _cut_strings(
    memory: memoryview, run: BatchRun, place: Field, axis: int | None, rows: tuple[int, int]
) -> Work[OutputTensor]:
    """Return the strings of an output, or of some of its rows: the first one, and how many."""
    start, shape = run.offset + place.offset, place.shape
    places = places_of(memory[start : start + place.size_bytes], place)
    if axis is not None:
        factor = shape[axis] // run.size
        first, last = rows[0] * factor, sum(rows) * factor
        places = places[(slice(None),) * axis + (slice(first, last),)]
    data = yield from SlotHeap(memory, run.ready, run.offset).raw(places.reshape(-1, 2))
    return OutputTensor(BYTES, places.shape[:-1], data)


def join(
    model: ModelReplica, request: CheckedRequest, parts: Sequence[InferenceResult]
) -> Work[InferenceResult]:
    largest = max(parts, key=lambda part: part.batch_size)
    outputs = {}
    for name in request.outputs:
        tensors = [part.outputs[name] for part in parts]
        outputs[name] = yield from _concatenate(tensors, model.output_axes.get(name))
    return InferenceResult(
        outputs=outputs,
        queue_us=parts[0].queue_us,
        prepare_us=sum(part.prepare_us for part in parts),
        transfer_us=sum(part.transfer_us for part in parts),
        compute_us=sum(part.compute_us for part in parts),
        batch_size=largest.batch_size,
        batch_rows=largest.batch_rows,
        plan_id=largest.plan_id,
    )


def _concatenate(parts: Sequence[OutputTensor], axis: int | None) -> Work[OutputTensor]:
    first = parts[0]
    if axis is None:
        return first
    shape = list(first.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    if axis == 0:
        data = yield from joined([part.data for part in parts])
    elif first.dtype == BYTES:
        texts = [_texts(part).reshape(part.shape) for part in parts]
        data = length_prefixed(np.concatenate(texts, axis).reshape(-1).tolist())
    else:
        lead = math.prod(shape[:axis]) or 1
        blocks = [np.frombuffer(part.data, np.uint8).reshape(lead, -1) for part in parts]
        data = yield from _side_by_side(blocks)
    return OutputTensor(first.dtype, tuple(shape), data)


def _side_by_side(blocks: Sequence[np.ndarray[Any, Any]]) -> Work[bytes]:
    """Return the bytes of blocks, each [rows, bytes], row by row."""
    rows, row_bytes = len(blocks[0]), sum(block.shape[1] for block in blocks)
    step, parts = PIECE_BYTES // (row_bytes or 1) or 1, []
    for at in range(0, rows, step):
        parts.append(np.concatenate([block[at : at + step] for block in blocks], 1).tobytes())
        yield
    return (yield from joined(parts))


def _texts(tensor: OutputTensor) -> np.ndarray[Any, Any]:
    elements = list(elements_of(tensor.data))
    texts = np.empty(len(elements), object)
    texts[:] = elements
    return texts
