"""Inference messages of the protocol, read and written without copying tensors needlessly.

Inputs and outputs may lie in shared memory that the caller has registered. Replies are prepared
while the device computes, and written as soon as a batch has ended, straight from the memory that
it shared with the device. Replies that depend on what the outputs contain take longer, and are
written from copies of the outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from google.protobuf.descriptor import Descriptor

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.inputs import Content, GivenTensor
from braid.core.pieces import PIECE_BYTES, Work, joined
from braid.core.tensor import BYTES
from braid.server.inference.call_memory import LaterReply
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    GivenRequest,
    InferenceResult,
    OutputTensor,
    WriteReply,
    check_listed,
)
from braid.server.inference.shared_regions import SharedRegion, SharedRegions
from braid.server.rpc.status import Context
from braid.server.servicers.oip.contents import CLASS_BYTES, classify, raw_bytes
from braid.server.servicers.oip.parameters import (
    FindRegion,
    RegionPart,
    Wishes,
    place_of,
    priority_and_timeout,
    read_wishes,
)
from braid.server.servicers.oip.shared_memory import owner_of
from braid.server.servicers.oip.wire import INFER, SERVICE, STREAM, messages
from braid.server.store.interface import reshaped
from braid_client import wire_fields
from braid_client.wire_fields import Part

_RAW_INPUTS = messages.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_RAW_OUTPUTS = messages.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
_RESPONSE = messages.ModelStreamInferResponse.DESCRIPTOR.fields_by_name["infer_response"].number


@dataclass(frozen=True, slots=True)
class SplitMessage:
    """Message of a request or response, and the raw contents apart."""

    message: Any  # without its raw contents
    raw_contents: Sequence[bytes | memoryview] = ()


WriteParts = Callable[[SplitMessage], list[Part]]
"""Writes a response: parts of its bytes, contents uncopied."""

WriteLater = Callable[[SplitMessage], Work[bytes | LaterReply]]
"""Writes a response by what its contents are."""


class OpenInference:
    """Inference of the protocol as a ``service.TensorProtocol``."""

    service = SERVICE.full_name
    unary, stream = INFER, STREAM
    request: Descriptor = messages.ModelInferRequest.DESCRIPTOR
    tensor: Descriptor | None = messages.InferTensorContents.DESCRIPTOR
    in_order = True

    def __init__(self, regions: SharedRegions) -> None:
        self._regions = regions

    @staticmethod
    def read(data: bytes) -> SplitMessage:
        """Parse a request, with contents as views of ``data``; DecodeError or InvalidRequest."""
        contents: Sequence[bytes | memoryview]
        parts = wire_fields.split(data, _RAW_INPUTS)
        if parts is None:
            message = messages.ModelInferRequest.FromString(data)
            contents = list(message.raw_input_contents)
            del message.raw_input_contents[:]
        else:
            head, contents = parts
            message = messages.ModelInferRequest.FromString(head)
        check_listed("inputs", len(message.inputs))
        check_listed("outputs", len(message.outputs))
        check_listed("parameters", len(message.parameters))
        return SplitMessage(message, contents)

    def unpacking(self, request: SplitMessage) -> Work[SplitMessage] | None:
        """Return the request with typed contents as raw ones; None: it has raw ones."""
        return None if request.raw_contents else _unpacked(request)

    def model_of(self, request: SplitMessage) -> tuple[str, str]:
        return request.message.model_name, request.message.model_version

    def given(self, request: SplitMessage, context: Context, in_stream: bool) -> GivenRequest:
        """The request in the server's terms; raises BraidError. Inputs may be in shared memory."""
        return self.written_by(_write_final_reply if in_stream else write_reply, request, context)

    def written_by(
        self,
        write: WriteParts,
        request: SplitMessage,
        context: Context,
        write_later: WriteLater | None = None,
    ) -> GivenRequest:
        """The request in the server's terms; ``write``, which looks at no content, replies.

        ``write_later``: in place of ``write``. Raises BraidError: contents or parameters are wrong.
        """
        message = request.message
        # Only requests that name a region pay for finding out who the caller is.
        find: FindRegion = lambda name: self._regions.find(owner_of(context), name)  # noqa: E731
        wishes = read_wishes(message.outputs, find)
        priority, timeout_s = priority_and_timeout(message.parameters)
        if write_later is None and wishes.classes:
            write_later = lambda reply: joined(write(reply))  # noqa: E731
        late = None if write_later is None else partial(_late_reply, message, wishes, write_later)
        return GivenRequest(
            request_id=message.id,
            inputs=list(_inputs(message, request.raw_contents, find)),
            outputs=_names(message.outputs),
            priority=priority,
            timeout_s=timeout_s,
            reply=partial(_reply, message, wishes, write) if late is None else None,
            reply_later=late,
            reply_bytes_a_row=CLASS_BYTES * sum(wishes.classes.values()),
        )

    def failure(self, request: SplitMessage, _: int, reason: str) -> bytes:
        named = messages.ModelInferResponse(
            model_name=request.message.model_name, id=request.message.id
        )
        return b"".join(write_stream_reply(SplitMessage(named), reason))


# Requests.


def _unpacked(request: SplitMessage) -> Work[SplitMessage]:
    """The request with its typed contents as raw ones. InvalidTensor: they do not fit."""
    raw = []
    for tensor in request.message.inputs:
        if place_of(tensor.parameters) is None:
            raw.append((yield from raw_bytes(tensor.name, tensor.datatype, tensor.contents)))
            tensor.ClearField("contents")
    return replace(request, raw_contents=raw)


def _inputs(
    request: Any, raw_contents: Sequence[Content], find_region: FindRegion
) -> Iterator[GivenTensor]:
    places = [place_of(tensor.parameters) for tensor in request.inputs]
    in_message = places.count(None)
    if len(raw_contents) != in_message:
        raise InvalidTensor(
            f"raw_input_contents has {len(raw_contents)} entries for {in_message} inputs that are "
            "not in shared memory; send one each, in the order of the inputs"
        )
    raw = iter(raw_contents)
    for tensor, place in zip(request.inputs, places, strict=True):
        content = _content(tensor, place, raw, find_region)
        yield GivenTensor(tensor.name, tensor.datatype, tuple(tensor.shape), content)


def _content(
    tensor: Any, place: RegionPart | None, raw: Iterator[Content], find_region: FindRegion
) -> Content:
    has_typed = tensor.HasField("contents")
    if place is not None:
        if has_typed:
            raise InvalidTensor(
                f"input {tensor.name!r} has contents and lies in shared memory; choose one"
            )
        return find_region(place.region).content(place.offset, place.size_bytes)
    if has_typed:
        raise InvalidTensor(
            f"input {tensor.name!r} has typed contents beside raw_input_contents; "
            "send all inputs in one of the two ways"
        )
    return next(raw)


def _names(outputs: Sequence[Any]) -> list[str]:
    names = [output.name for output in outputs]
    if len(names) != len(set(names)):
        raise InvalidRequest("an output is requested twice")
    return names


# Replies.


def _reply(
    request: Any,
    wishes: Wishes,
    write: WriteParts,
    model: ModelReplica,
    outputs: Mapping[str, OutputTensor],
) -> WriteReply:
    reply, to_regions = reply_to(request, model, outputs, wishes)
    parts = write(reply)

    def write_all(_: InferenceResult) -> Work[bytes]:
        for writing in to_regions:
            yield from writing
        return (yield from joined(parts))

    return write_all


def _late_reply(
    request: Any,
    wishes: Wishes,
    write: WriteLater,
    model: ModelReplica,
    outputs: Mapping[str, OutputTensor],
) -> Work[bytes | LaterReply]:
    shown = dict(outputs)
    has_batch = model.batched and model.interface.has_batch
    for name, count in wishes.classes.items():
        labels = model.interface.labels(name)
        shown[name] = yield from classify(name, outputs[name], count, has_batch, labels)
    reply, to_regions = reply_to(request, model, shown, wishes)
    for writing in to_regions:
        yield from writing
    return (yield from write(reply))


def reply_to(
    request: Any, model: ModelReplica, outputs: Mapping[str, OutputTensor], wishes: Wishes
) -> tuple[SplitMessage, list[Work[None]]]:
    """Return the response to one request, and the work of writing outputs to shared memory.

    ``raw_output_contents`` has one entry for each output, empty where it goes to shared memory:
    clients find an output's bytes by its position. The work raises InvalidRequest if an output
    does not fit where it is to go.
    """
    raw_contents: list[bytes | memoryview] = []
    to_regions: list[Work[None]] = []
    response = messages.ModelInferResponse(
        model_name=request.model_name, model_version=str(model.version), id=request.id
    )
    for name, tensor in outputs.items():
        shape, reshape = tensor.shape, model.reshaped_outputs.get(name)
        if reshape is not None and name not in wishes.classes:
            shape = reshaped(shape, *reversed(reshape))
        output = response.outputs.add(name=name, datatype=tensor.dtype, shape=shape)
        if name not in wishes.destinations:
            raw_contents.append(tensor.data)
            continue
        region, place = wishes.destinations[name]
        to_regions.append(_written_to_region(name, tensor, region, place))
        raw_contents.append(b"")
        output.parameters["shared_memory_region"].string_param = place.region
        output.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
        if place.offset:
            output.parameters["shared_memory_offset"].int64_param = place.offset
    return SplitMessage(response, raw_contents), to_regions


def _written_to_region(
    name: str, tensor: OutputTensor, region: SharedRegion, place: RegionPart
) -> Work[None]:
    size = len(tensor.data)
    if tensor.dtype == BYTES:
        raise InvalidRequest(
            f"output {name!r} has strings, which are not written to shared memory; ask for it "
            "in the answer"
        )
    if size > place.size_bytes:
        raise InvalidRequest(
            f"output {name!r} takes {size} bytes, its place in shared memory region "
            f"{place.region!r} has {place.size_bytes}"
        )
    data = memoryview(tensor.data)
    for at in range(0, size, PIECE_BYTES):
        if at:
            yield
        region.write(place.offset + at, data[at : at + PIECE_BYTES])


def write_reply(reply: SplitMessage) -> list[Part]:
    parts: list[Part] = [reply.message.SerializeToString()]
    for content in reply.raw_contents:
        parts += [wire_fields.head(_RAW_OUTPUTS, len(content)), content]
    return parts


def _write_final_reply(reply: SplitMessage) -> list[Part]:
    """Return the parts of the only response to a stream's request."""
    reply.message.parameters["triton_final_response"].bool_param = True
    return write_stream_reply(reply)


def write_stream_reply(reply: SplitMessage, error_message: str = "") -> list[Part]:
    head = messages.ModelStreamInferResponse(error_message=error_message)
    return [head.SerializeToString(), *wire_fields.field(_RESPONSE, write_reply(reply))]
