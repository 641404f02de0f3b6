"""Parameters of requests, inputs and outputs.

Reserved parameters are read or refused. Others are for the model or for another server, as
MLServer's ``content_type`` is; no model of ours takes any, and they are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.core.errors import InvalidRequest, NotOffered
from braid.server.inference.requests import DEFAULT_PRIORITY, PRIORITY_LEVELS
from braid.server.inference.shared_regions import SharedRegion

MAX_TIMEOUT_US = 2**53
"""285 years: what is beyond is a mistake."""

_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_HTTP_ONLY = ("headers", "binary_data_output")
_RESERVED_PREFIX = "triton_"
_FINAL = "triton_enable_empty_final_response"  # each of our answers is the only and final one
_REGION = "shared_memory_region"
_SIZE = "shared_memory_byte_size"
_OFFSET = "shared_memory_offset"
_CLASSES = "classification"

_OF_REQUESTS = frozenset((*_SEQUENCE, *_HTTP_ONLY, "priority", "timeout"))
_OF_PLACES = frozenset((_REGION, _SIZE, _OFFSET))
_READ = _OF_REQUESTS | _OF_PLACES | {_CLASSES}

MAX_CLASSES = 10_000


@dataclass(frozen=True, slots=True)
class RegionPart:
    """Part of a shared memory region, where a tensor lies or is to be written."""

    region: str
    offset: int
    size_bytes: int


def is_read(name: str) -> bool:
    """True if a parameter of this name is read here, or refused; others may have any value."""
    return name in _READ or name.startswith(_RESERVED_PREFIX)


FindRegion = Callable[[str], SharedRegion]
"""Finds the caller's shared memory region of a name."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Outputs that the caller wants otherwise than as plain tensors, by name."""

    destinations: Mapping[str, tuple[SharedRegion, RegionPart]]
    classes: Mapping[str, int]  # how many of the largest classes


def priority_and_timeout(parameters: Mapping[str, Any]) -> tuple[int, float | None]:
    """Priority, timeout in seconds or None. Raises InvalidRequest; for sequences NotOffered."""
    if not parameters:
        return DEFAULT_PRIORITY, None
    for name in parameters:
        if name in _SEQUENCE and value_of(parameters[name]) not in (None, 0, "", False):
            raise NotOffered(f"parameter {name!r}: models with state are not offered here")
        if name in _HTTP_ONLY or (name.startswith(_RESERVED_PREFIX) and name != _FINAL):
            raise InvalidRequest(f"parameter {name[:100]!r} is reserved; leave it out")
    priority = _integer(parameters, "priority", PRIORITY_LEVELS)
    timeout_us = _integer(parameters, "timeout", MAX_TIMEOUT_US)
    return priority or DEFAULT_PRIORITY, timeout_us / 1e6 if timeout_us else None


def place_of(parameters: Mapping[str, Any]) -> RegionPart | None:
    """Where a tensor lies in shared memory; None: in the message. Raises InvalidRequest."""
    if not (parameters and any(name in parameters for name in _OF_PLACES)):
        return None
    region = value_of(parameters[_REGION]) if _REGION in parameters else None
    if not isinstance(region, str) or not region:
        raise InvalidRequest(f"parameter {_REGION!r} must name a registered region")
    if _SIZE not in parameters:
        raise InvalidRequest(f"parameter {_SIZE!r} is missing beside {_REGION!r}")
    return RegionPart(
        region, _integer(parameters, _OFFSET, 2**62), _integer(parameters, _SIZE, 2**62)
    )


def read_wishes(outputs: Sequence[Any], find_region: FindRegion) -> Wishes:
    """Read destination and classes of the requested outputs. BraidError: a wrong parameter."""
    destinations, classes = {}, {}
    for output in outputs:
        if not (given := output.parameters):
            continue
        place, count = place_of(given), _integer(given, _CLASSES, MAX_CLASSES)
        if count and place is not None:
            raise InvalidRequest(
                f"output {output.name!r}: classification does not go to shared memory"
            )
        if place is not None:
            region = find_region(place.region)
            region.check(place.offset, place.size_bytes)
            destinations[output.name] = region, place
        if count:
            classes[output.name] = count
    return Wishes(destinations, classes)


def _integer(parameters: Mapping[str, Any], name: str, largest: int) -> int:
    """Return a parameter between 0 and ``largest``; 0 if it is not given."""
    if name not in parameters:
        return 0
    value = value_of(parameters[name])
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"parameter {name!r} must be an integer")
    if not 0 <= value <= largest:
        raise InvalidRequest(f"parameter {name!r} is {value}; it lies between 0 and {largest}")
    return value


def value_of(parameter: Any) -> Any:
    """Return the value of a parameter; None: it has none."""
    field = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, field) if field else None
