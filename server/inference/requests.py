"""Checks an inference request against the model's inputs, and names the first mistake.

Knows no protocol: each servicer says in these terms what came.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.inputs import (
    CheckedModel,
    Content,
    GivenTensor,
    ShapeClass,
    check_inputs,
    checked_strings,
    named_inputs,
)
from braid.core.pieces import Work
from braid.core.tensor import BYTES
from braid.server.inference.call_memory import LaterReply
from braid.server.inference.replica import ModelReplica
from braid.server.store.interface import reshaped

MAX_REQUEST_ID_BYTES = 128

MAX_LISTED = 4096
"""Inputs of a request, outputs that it asks for, parameters: more are not looked at one by one."""

PRIORITY_LEVELS = 10
"""Priorities are 1 (goes first) to this."""

DEFAULT_PRIORITY = 5


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output, for one request."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@dataclass(slots=True)
class InferenceResult:
    """Outputs of a request, with its times in microseconds and its batch."""

    outputs: Mapping[str, OutputTensor]
    queue_us: int
    transfer_us: int  # to the device and back, beside the computing
    compute_us: int
    batch_size: int
    batch_rows: int
    plan_id: str
    prepare_us: int = 0  # until shapes that are new to the device were prepared
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
    is_empty: bool = False  # of no rows: it takes the place of one, which is padding


def check_listed(what: str, count: int) -> None:
    if count > MAX_LISTED:
        raise InvalidRequest(f"the request has {count} {what}; it may have {MAX_LISTED}")


def in_own_shapes(model: ModelReplica, request: GivenRequest) -> GivenRequest:
    """Return a request with inputs in the model's shapes that came in declared ones."""
    if not model.reshaped_inputs:
        return request
    by_name, inputs = model.reshaped_inputs, request.inputs
    shapes = [reshaped(x.shape, *by_name[x.name]) if x.name in by_name else x.shape for x in inputs]
    both = zip(inputs, shapes, strict=True)
    return replace(request, inputs=[replace(given, shape=shape) for given, shape in both])


def check_request(model: CheckedModel, request: GivenRequest) -> CheckedRequest:
    """Validate names, dtypes, shapes, byte counts, wanted outputs and the priority.

    Strings are not looked at: ``with_strings`` comes next where the shape class has some.
    Raises InvalidTensor, naming the first wrong input or all missing ones, or InvalidRequest.
    """
    if request.request_id and len(request.request_id.encode()) > MAX_REQUEST_ID_BYTES:
        raise InvalidRequest(f"the request id is longer than {MAX_REQUEST_ID_BYTES} bytes")
    if not 1 <= request.priority <= PRIORITY_LEVELS:
        raise InvalidRequest(
            f"priority {request.priority} is not between 1 (goes first) and {PRIORITY_LEVELS}"
        )
    named = named_inputs(model, request.inputs)
    shape_class, rows = check_inputs(model, named)
    return CheckedRequest(
        shape_class=shape_class,
        rows=rows or 1,
        inputs={tensor.name: tensor.data for tensor in named},
        outputs=_wanted(request.outputs, model.outputs) if request.outputs else model.outputs,
        priority=request.priority,
        reply=request.reply,
        is_empty=rows == 0,
    )


def by_itself(
    model: CheckedModel, request: GivenRequest, checked: CheckedRequest
) -> CheckedRequest:
    """Return a request that shares no batch, and whose outputs may have any extents."""
    inputs = named_inputs(model, request.inputs)
    shape_class, rows = check_inputs(model, inputs, is_alone=True)
    return replace(checked, shape_class=shape_class, rows=rows, is_empty=False)


def with_strings(
    model: CheckedModel, request: GivenRequest, checked: CheckedRequest
) -> Work[CheckedRequest]:
    """Check the strings of a request, and return it with them; or raise InvalidTensor."""
    inputs = dict(checked.inputs)
    for given in named_inputs(model, request.inputs):
        if given.dtype == BYTES:
            inputs[given.name] = yield from checked_strings(given)
    return replace(checked, inputs=inputs)


def _wanted(names: Sequence[str], outputs: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in outputs:
            raise InvalidTensor(
                f"the model has no output {name!r}; its outputs: {', '.join(outputs)}"
            )
    wanted = set(names)
    return tuple(name for name in outputs if name in wanted)
