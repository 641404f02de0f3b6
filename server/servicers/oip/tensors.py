"""Inference messages of the protocol, read and written without copying tensors needlessly.

    ModelInferRequest ──read──> SplitMessage (the message without contents, views of them)
    InferenceResult ──reply_to──> SplitMessage (the message without contents, views of them)
                    ──write_reply──> ModelInferResponse

Inputs and outputs may lie in shared memory that the caller has registered. Replies are prepared
while the device computes, and written as soon as a batch has ended, straight from the memory that
it shared with the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.core.tensor import BYTES
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import (
    Content,
    GivenRequest,
    GivenTensor,
    InferenceResult,
    OutputTensor,
    WriteReply,
)
from braid.server.inference.shared_regions import SharedRegion, SharedRegions
from braid.server.rpc.status import Context
from braid.server.servicers.oip.contents import classify, raw_bytes
from braid.server.servicers.oip.parameters import (
    FindRegion,
    RegionPart,
    Wishes,
    input_place,
    priority_and_timeout,
    read_wishes,
)
from braid.server.servicers.oip.shared_memory import owner_of
from braid.server.servicers.oip.wire import INFER, SERVICE_NAME, STREAM, messages
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


class OpenInference:
    """Inference of the protocol as a ``service.TensorProtocol``."""

    service = SERVICE_NAME
    unary, stream = INFER, STREAM
    in_order = True

    def __init__(self, regions: SharedRegions) -> None:
        self._regions = regions

    @staticmethod
    def read(data: bytes) -> SplitMessage:
        """Parse a request; its raw contents are views of ``data``.

        Raises:
            DecodeError: ``data`` is no such message.
        """
        parts = wire_fields.split(data, _RAW_INPUTS)
        if parts is None:
            whole = messages.ModelInferRequest.FromString(data)
            raw = list(whole.raw_input_contents)
            del whole.raw_input_contents[:]
            return SplitMessage(whole, raw)
        rest, contents = parts
        return SplitMessage(messages.ModelInferRequest.FromString(rest), contents)

    def model_of(self, request: SplitMessage) -> tuple[str, str]:
        """Name and version of the model in the message."""
        return request.message.model_name, request.message.model_version

    def given(self, request: SplitMessage, context: Context, in_stream: bool) -> GivenRequest:
        """Return the request in the server's terms; inputs lie in the message or in shared memory.

        Raises:
            BraidError: contents do not fit the inputs, or a parameter is wrong.
        """
        return self.written_by(_write_final_reply if in_stream else write_reply, request, context)

    def written_by(
        self, write: WriteParts, request: SplitMessage, context: Context, *, is_early: bool = True
    ) -> GivenRequest:
        """Return the request in the server's terms, its reply written by ``write``.

        Args:
            write: the form of the reply.
            request: message, and contents apart.
            context: of the call.
            is_early: ``write`` looks at no content, and is called while the device computes.

        Raises:
            BraidError: contents do not fit the inputs, or a parameter is wrong.
        """
        message = request.message
        # Only requests that name a region pay for finding out who the caller is.
        find: FindRegion = lambda name: self._regions.find(owner_of(context), name)  # noqa: E731
        wishes = read_wishes(message.outputs, find)
        priority, timeout_s = priority_and_timeout(message.parameters)
        return GivenRequest(
            request_id=message.id,
            inputs=list(_inputs(message, request.raw_contents, find)),
            outputs=_names(message.outputs),
            priority=priority,
            timeout_s=timeout_s,
            reply=partial(_reply, message, wishes, write, is_early and not wishes.classes),
        )

    def failure(self, request: SplitMessage, _: int, reason: str) -> bytes:
        """Return a ModelStreamInferResponse that says why a request failed."""
        named = messages.ModelInferResponse(
            model_name=request.message.model_name, id=request.message.id
        )
        return b"".join(write_stream_reply(SplitMessage(named), reason))


# Requests.


def _inputs(
    request: Any, raw_contents: Sequence[Content], find_region: FindRegion
) -> Iterator[GivenTensor]:
    places = [input_place(each.name, each.parameters) for each in request.inputs]
    in_message = places.count(None)
    if raw_contents and len(raw_contents) != in_message:
        raise InvalidTensor(
            f"raw_input_contents has {len(raw_contents)} entries for {in_message} inputs that are "
            "not in shared memory; send one each, in the order of the inputs"
        )
    raw = iter(raw_contents)
    for tensor, place in zip(request.inputs, places, strict=True):
        content = _content(tensor, place, raw if raw_contents else None, find_region)
        yield GivenTensor(tensor.name, tensor.datatype, tuple(tensor.shape), content)


def _content(
    tensor: Any, place: RegionPart | None, raw: Iterator[Content] | None, find_region: FindRegion
) -> Content:
    has_typed = tensor.HasField("contents")
    if place is not None:
        if has_typed:
            raise InvalidTensor(
                f"input {tensor.name!r} has contents and lies in shared memory; choose one"
            )
        return find_region(place.region).content(place.offset, place.size_bytes)
    if raw is None:
        return raw_bytes(tensor.name, tensor.datatype, tensor.contents)
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
    is_early: bool,
    model: ModelReplica,
    outputs: Mapping[str, OutputTensor],
) -> WriteReply:
    def prepare() -> tuple[list[Part], list[Callable[[], None]]]:
        reply, to_regions = reply_to(request, model, outputs, wishes)
        return write(reply), to_regions

    early = prepare() if is_early else None  # classes depend on what the outputs contain

    def write_all(_: InferenceResult) -> bytes:
        parts, to_regions = early or prepare()
        for write_output in to_regions:
            write_output()
        return b"".join(parts)

    return write_all


def reply_to(
    request: Any, model: ModelReplica, outputs: Mapping[str, OutputTensor], wishes: Wishes
) -> tuple[SplitMessage, list[Callable[[], None]]]:
    """Return the response to one request, and calls that write outputs to shared memory.

    ``raw_output_contents`` has one entry for each output, empty where it goes to shared memory:
    clients find an output's bytes by its position. Such a call raises InvalidRequest if the output
    does not fit where it is to go.
    """
    raw_contents: list[bytes | memoryview] = []
    to_regions: list[Callable[[], None]] = []
    response = messages.ModelInferResponse(
        model_name=request.model_name, model_version=str(model.version), id=request.id
    )
    for name, tensor in outputs.items():
        if count := wishes.classes.get(name):
            tensor = classify(name, tensor, count, model.batched)
        output = response.outputs.add(name=name, datatype=tensor.dtype, shape=tensor.shape)
        if name not in wishes.destinations:
            raw_contents.append(tensor.data)
            continue
        if tensor.dtype == BYTES:
            raise InvalidRequest(
                f"output {name!r} has strings, which are not written to shared memory; ask for it "
                "in the answer"
            )
        region, place = wishes.destinations[name]
        to_regions.append(partial(_write_to_region, name, tensor, region, place))
        raw_contents.append(b"")
        output.parameters["shared_memory_region"].string_param = place.region
        output.parameters["shared_memory_byte_size"].int64_param = len(tensor.data)
        if place.offset:
            output.parameters["shared_memory_offset"].int64_param = place.offset
    return SplitMessage(response, raw_contents), to_regions


def _write_to_region(
    name: str, tensor: OutputTensor, region: SharedRegion, place: RegionPart
) -> None:
    size = len(tensor.data)
    if size > place.size_bytes:
        raise InvalidRequest(
            f"output {name!r} takes {size} bytes, its place in shared memory region "
            f"{place.region!r} has {place.size_bytes}"
        )
    region.write(place.offset, tensor.data)


def write_reply(reply: SplitMessage) -> list[Part]:
    """Return the parts of a response, contents uncopied."""
    contents = (wire_fields.field(_RAW_OUTPUTS, [each]) for each in reply.raw_contents)
    return [reply.message.SerializeToString(), *chain.from_iterable(contents)]


def _write_final_reply(reply: SplitMessage) -> list[Part]:
    """Return the parts of the only response to a stream's request."""
    reply.message.parameters["triton_final_response"].bool_param = True
    return write_stream_reply(reply)


def write_stream_reply(reply: SplitMessage, error_message: str = "") -> list[Part]:
    """Return the parts of a stream's response."""
    head = messages.ModelStreamInferResponse(error_message=error_message)
    return [head.SerializeToString(), *wire_fields.field(_RESPONSE, write_reply(reply))]
