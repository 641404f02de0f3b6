"""Checks an inference request against the model's inputs, and names the first mistake.

    message ──servicer──> GivenRequest ──check_request──> CheckedRequest ──> InferenceResult

Knows no protocol: each servicer says in these terms what came. Everything a caller can get wrong
about a tensor ends here, as InvalidTensor with the name of the input, what came and what is
wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.pieces import Work, finished
from braid.core.strings import MAX_STRINGS, Strings, read_strings
from braid.core.tensor import BATCH, BYTES, DTYPE_BYTES, TensorType
from braid.server.inference.call_memory import LaterReply
from braid.server.inference.replica import ModelReplica, ShapeClass

MAX_REQUEST_ID_BYTES = 128

MAX_LISTED = 4096
"""Inputs of a request, outputs that it asks for, parameters: more are not looked at one by one."""

MAX_SEEN_SHAPES = 256
"""Checked combinations of inputs that are remembered for each model, the first ones it gets."""

PRIORITY_LEVELS = 10
"""Priorities are 1 (goes first) to this."""

DEFAULT_PRIORITY = 5


class StoredContent(Protocol):
    """Content that lies elsewhere and is fetched when a batch is formed."""

    def __len__(self) -> int: ...

    def __bytes__(self) -> bytes: ...

    def read_into(self, memory: memoryview, start: int) -> None:
        """Fill ``memory`` from byte ``start`` of the content on.

        Raises:
            InvalidRequest: it cannot be read (any more).
        """


Content = bytes | memoryview | StoredContent | Strings
"""Raw little-endian elements in row-major order; of BYTES, ``Strings`` once they are checked."""


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """Input of a request, not checked."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Content


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output, for one request."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """Outputs of a request, with its times in microseconds and its batch."""

    outputs: Mapping[str, OutputTensor]
    queue_us: int
    transfer_us: int  # to the device and back, beside the computing
    compute_us: int
    batch_size: int
    batch_rows: int
    plan_id: str
    reply: bytes | None = None  # as the request's ``reply`` made it; then ``outputs`` is empty


WriteReply = Callable[[InferenceResult], Work[bytes]]
"""Writes the reply that was prepared; the result's ``outputs`` are not looked at.

Afterwards the memory of the outputs is used again: nothing of it may be kept.
"""

PrepareReply = Callable[[ModelReplica, Mapping[str, OutputTensor]], WriteReply]
"""Prepares the protocol's reply to a request while the device computes its outputs.

Dtypes and shapes of the outputs are known; their data are views of memory that is not filled before
the reply is written. Raises nothing: what may fail is left to the writing.
"""


ReplyLater = Callable[[ModelReplica, Mapping[str, OutputTensor]], Work[bytes | LaterReply]]
"""Makes the protocol's reply from copies of the outputs."""


@dataclass(frozen=True, slots=True)
class GivenRequest:
    """Inference request of any protocol, not checked."""

    request_id: str
    inputs: Sequence[GivenTensor]
    outputs: Sequence[str]  # none: all
    priority: int = DEFAULT_PRIORITY
    reply: PrepareReply | None = None  # saves a copy of the outputs
    reply_later: ReplyLater | None = None  # where writing takes long: it is done without the slot
    reply_bytes_a_row: int = 0  # that such a reply takes beside the outputs
    timeout_s: float | None = None  # as the message says, beside the deadline of the call


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """Request that the model can run."""

    shape_class: ShapeClass
    rows: int  # 1 for models without a batch
    inputs: Mapping[str, Content]  # all rows
    outputs: tuple[str, ...]  # wanted, in the model's order
    priority: int = DEFAULT_PRIORITY  # 1 goes first
    reply: PrepareReply | None = None


class CheckedModel(Protocol):
    """Model that a request is checked against: a replica, or a network without a server."""

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Inputs by name, with symbols for open extents."""

    @property
    def outputs(self) -> tuple[str, ...]: ...

    @property
    def batched(self) -> bool:
        """True if a request may have any number of rows."""

    @property
    def static_inputs(self) -> Sequence[str]:
        """Inputs whose content decides shapes."""

    @property
    def seen_shapes(self) -> dict[Hashable, tuple[ShapeClass, int]]:
        """Memory of inputs that were right, which is filled here."""

    def one_row(self, spec: TensorType) -> TensorType:
        """Return the spec of a request's input for one row."""


def check_listed(what: str, count: int) -> None:
    """Raise InvalidRequest if a request lists more than MAX_LISTED of something."""
    if count > MAX_LISTED:
        raise InvalidRequest(f"the request has {count} {what}; it may have {MAX_LISTED}")


def check_request(model: CheckedModel, request: GivenRequest) -> CheckedRequest:
    """Check a request at once; see ``checking``."""
    return finished(checking(model, request))


def checking(model: CheckedModel, request: GivenRequest) -> Work[CheckedRequest]:
    """Validate names, dtypes, shapes, byte counts, wanted outputs and the priority.

    Raises:
        InvalidTensor: naming the first input that is wrong, or all that are missing.
        InvalidRequest: request id or priority are out of range.
    """
    if len(request.request_id.encode()) > MAX_REQUEST_ID_BYTES:
        raise InvalidRequest(f"the request id is longer than {MAX_REQUEST_ID_BYTES} bytes")
    if not 1 <= request.priority <= PRIORITY_LEVELS:
        raise InvalidRequest(
            f"priority {request.priority} is not between 1 (goes first) and {PRIORITY_LEVELS}"
        )
    named = _named(model, request.inputs)
    shape_class, rows = _check_inputs(model, named)
    inputs = {tensor.name: tensor.data for tensor in named}
    if shape_class.has_strings:
        for each in named:
            if each.dtype == BYTES:
                inputs[each.name] = yield from _strings(each)
    return CheckedRequest(
        shape_class=shape_class,
        rows=rows,
        inputs=inputs,
        outputs=_wanted(request.outputs, model.outputs),
        priority=request.priority,
        reply=request.reply,
    )


def _named(model: CheckedModel, inputs: Sequence[GivenTensor]) -> Sequence[GivenTensor]:
    """Return the inputs; one without a name is the model's only input."""
    if len(inputs) != 1 or inputs[0].name or len(model.inputs) != 1:
        return inputs
    return [replace(inputs[0], name=next(iter(model.inputs)))]


def _check_inputs(model: CheckedModel, inputs: Sequence[GivenTensor]) -> tuple[ShapeClass, int]:
    """Return the inputs' shape class and rows. Inputs that look like checked ones pass at once."""
    looks = tuple([(each.name, each.dtype, each.shape, len(each.data)) for each in inputs])
    seen = model.seen_shapes.get(looks)
    if seen is not None:
        return seen
    tensors = _by_name(inputs, model.inputs)
    symbols: dict[str, int] = {}
    specs = {
        name: _check_tensor(tensors[name], spec, symbols) for name, spec in model.inputs.items()
    }
    shape_class = ShapeClass(
        tuple((name, model.one_row(spec)) for name, spec in specs.items()),
        tuple((name, bytes(tensors[name].data)) for name in model.static_inputs),
    )
    rows = symbols[BATCH] if model.batched else 1
    if not model.static_inputs and len(model.seen_shapes) < MAX_SEEN_SHAPES:
        model.seen_shapes[looks] = shape_class, rows
    return shape_class, rows


def _by_name(
    tensors: Sequence[GivenTensor], wanted: Mapping[str, TensorType]
) -> dict[str, GivenTensor]:
    """Return the inputs by name: each wanted one exactly once, and no other."""
    found: dict[str, GivenTensor] = {}
    listing = ", ".join(f"{name} {spec}" for name, spec in wanted.items())
    for tensor in tensors:
        if tensor.name in found:
            raise InvalidTensor(f"input {tensor.name!r} is given twice")
        if not tensor.name and tensor.name not in wanted:
            raise InvalidTensor(f"say which input is meant; the model's inputs: {listing}")
        if tensor.name not in wanted:
            raise InvalidTensor(f"the model has no input {tensor.name!r}; its inputs: {listing}")
        found[tensor.name] = tensor
    if missing := [name for name in wanted if name not in found]:
        raise InvalidTensor(f"missing input(s) {', '.join(missing)}; the model takes: {listing}")
    return found


def _check_tensor(tensor: GivenTensor, spec: TensorType, symbols: dict[str, int]) -> TensorType:
    """Check one input against its spec; binds the spec's symbols, which inputs may share."""
    name, shape = tensor.name, tensor.shape
    if tensor.dtype != spec.dtype:
        raise InvalidTensor(
            f"input {name!r} has dtype {tensor.dtype!r}, the model takes {spec.dtype}"
        )
    if len(shape) != len(spec.shape):
        raise InvalidTensor(
            f"input {name!r} has rank {len(shape)} (shape {list(shape)}), the model takes {spec}"
        )
    for axis, (extent, dim) in enumerate(zip(shape, spec.shape, strict=True)):
        if extent < 1:
            raise InvalidTensor(
                f"input {name!r} has extent {extent} at axis {axis}; extents must be at least 1"
            )
        want = symbols.setdefault(dim, extent) if isinstance(dim, str) else dim
        if extent != want:
            also = f" (the same {dim!r} as in another input)" if isinstance(dim, str) else ""
            raise InvalidTensor(
                f"input {name!r} has shape {list(shape)}, the model takes {spec}: "
                f"axis {axis} must be {want}{also}"
            )
    if spec.dtype == BYTES:
        return TensorType(BYTES, shape)  # looked at later, each time
    size = math.prod(shape) * DTYPE_BYTES[spec.dtype]
    if len(tensor.data) != size:
        raise InvalidTensor(
            f"input {name!r} has {len(tensor.data)} bytes of data; "
            f"{spec.dtype}{list(shape)} takes {size}"
        )
    return TensorType(spec.dtype, shape)


def _strings(tensor: GivenTensor) -> Work[Strings]:
    """Return the strings of an input whose shape is checked.

    Raises:
        InvalidTensor: there are too many, they lie in shared memory, or lengths or characters are
            wrong.
    """
    name, count = tensor.name, math.prod(tensor.shape)
    if not isinstance(tensor.data, bytes | memoryview):
        raise InvalidTensor(
            f"input {name!r} takes strings, which are not read from shared memory; "
            "send them in the request"
        )
    if count > MAX_STRINGS:
        raise InvalidTensor(
            f"input {name!r} has {count} strings; a request may have {MAX_STRINGS} in each input"
        )
    try:
        return (yield from read_strings(tensor.data, count))
    except ValueError as error:
        raise InvalidTensor(f"input {name!r} {error}") from None


def _wanted(names: Sequence[str], outputs: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return outputs
    for name in names:
        if name not in outputs:
            raise InvalidTensor(
                f"the model has no output {name!r}; its outputs: {', '.join(outputs)}"
            )
    wanted = set(names)
    return tuple(name for name in outputs if name in wanted)
