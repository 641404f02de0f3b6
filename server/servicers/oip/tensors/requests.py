"""ModelInferRequest in the server's own terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.core.errors import InvalidRequest, InvalidTensor
from braid.server.inference.requests import Content, GivenRequest, GivenTensor
from braid.server.inference.shared_regions import SharedRegion
from braid.server.servicers.oip.tensors.contents import raw_bytes
from braid.server.servicers.oip.tensors.parameters import (
    Placement,
    input_placement,
    output_parameters,
    request_parameters,
)
from braid.server.servicers.oip.tensors.transfer import Received

FindRegion = Callable[[str], SharedRegion]
"""The caller's shared memory region of a name."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A part of a region that an output is written to. Holds the region."""

    region: SharedRegion
    placement: Placement


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants with the outputs; by name, where it is not the plain tensor."""

    destinations: Mapping[str, Destination]
    classes: Mapping[str, int]


def read_inputs(received: Received, find_region: FindRegion) -> GivenRequest:
    """The request, its inputs from wherever they are.

    Args:
        received: the message and its raw contents.
        find_region: of the caller's shared memory, which inputs may lie in.

    Raises:
        BraidError: contents do not fit the inputs, or a parameter is wrong.
    """
    request = received.message
    wanted = request_parameters(request.parameters)
    return GivenRequest(
        request_id=request.id,
        inputs=list(_inputs(request, received.raw_contents, find_region)),
        outputs=_names(request.outputs),
        priority=wanted.priority,
        timeout_s=wanted.timeout_s,
    )


def read_wishes(outputs: Sequence[Any], find_region: FindRegion) -> Wishes:
    """What the requested outputs say beside their names.

    Raises:
        BraidError: a parameter is wrong, or a region is not registered or too small.
    """
    destinations, classes = {}, {}
    for output in outputs:
        placement, count = output_parameters(output.name, output.parameters)
        if placement is not None:
            region = find_region(placement.region)
            region.check(placement.offset, placement.size_bytes)
            destinations[output.name] = Destination(region, placement)
        if count:
            classes[output.name] = count
    return Wishes(destinations, classes)


def _inputs(
    request: Any, raw_contents: Sequence[Content], find_region: FindRegion
) -> Iterator[GivenTensor]:
    placements = [input_placement(each.name, each.parameters) for each in request.inputs]
    in_message = placements.count(None)
    if raw_contents and len(raw_contents) != in_message:
        raise InvalidTensor(
            f"raw_input_contents has {len(raw_contents)} entries for {in_message} inputs that are "
            "not in shared memory; send one each, in the order of the inputs"
        )
    raw = iter(raw_contents)
    for tensor, placement in zip(request.inputs, placements, strict=True):
        yield GivenTensor(
            tensor.name,
            tensor.datatype,
            tuple(tensor.shape),
            _content(tensor, placement, raw if raw_contents else None, find_region),
        )


def _content(
    tensor: Any,
    placement: Placement | None,
    raw: Iterator[Content] | None,
    find_region: FindRegion,
) -> Content:
    has_typed = tensor.HasField("contents")
    if placement is not None:
        if has_typed:
            raise InvalidTensor(
                f"input {tensor.name!r} has contents and lies in shared memory; choose one"
            )
        region = find_region(placement.region)
        return region.content(placement.offset, placement.size_bytes)
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
