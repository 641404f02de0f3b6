"""Kernel calls of a stream plan: units, their order and their streams.

    plan, segment by segment ──> calls; the stream with most of the critical path becomes the origin
    stage                    ──> calls, group by group; likewise

The origin stream begins and ends the capture. The segment's longest chain belongs there: memory
comes back to the stream that allocated it, so most of it then lives on one stream from stage to
stage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import Strategy
from braid.engine.program.program import BoundUnit, Program


@dataclass(frozen=True, slots=True)
class StreamCall:
    """One unit, or merged ones, on one stream. Calls on one stream run in order."""

    units: tuple[int, ...]
    bound: BoundUnit
    stream: int
    after: int  # bit set of earlier calls, by index, that must have finished


def plan_calls(program: Program, plan: StreamPlan) -> tuple[StreamCall, ...]:
    merged = {unit: len(units) for units in plan.merges for unit in units}
    calls: list[StreamCall] = []
    made_by: dict[int, int] = {}  # unit -> call
    for segment in plan.segments():
        before = (1 << len(calls)) - 1
        first = len(calls)
        for launches in _kernels(segment, merged):
            units = tuple(launch.unit for launch in launches)
            waits = {made_by[other] for launch in launches for other in launch.waits}
            after = before | sum(1 << call for call in waits)
            made_by.update(dict.fromkeys(units, len(calls)))
            calls.append(StreamCall(units, program.unit(units), launches[0].stream, after))
        calls[first:] = _renumber_streams(calls[first:], first)
    return tuple(calls)


def stage_calls(
    program: Program, groups: Sequence[Sequence[int]], strategy: Strategy
) -> tuple[StreamCall, ...]:
    """A stage, group i on a stream of its own; ``merge`` runs each group as one kernel."""
    calls = [
        StreamCall(units, program.unit(units), stream, 0)
        for stream, group in enumerate(groups)
        for units in ([tuple(group)] if strategy == "merge" else [(unit,) for unit in group])
    ]
    return tuple(_renumber_streams(calls, 0))


def serial(calls: Sequence[StreamCall]) -> tuple[StreamCall, ...]:
    """The same calls on the same streams, each after the one before."""
    return tuple(replace(call, after=(1 << i) - 1) for i, call in enumerate(calls))


def _kernels(segment: Sequence[Launch], merged: dict[int, int]) -> Iterator[Sequence[Launch]]:
    at = 0
    while at < len(segment):
        end = at + merged.get(segment[at].unit, 1)
        yield segment[at:end]
        at = end


def _renumber_streams(calls: Sequence[StreamCall], first: int) -> list[StreamCall]:
    """Streams in order of their part of the critical path, then of their work; 0 is the origin."""
    critical = _critical_path(calls, first)
    rank: dict[int, tuple[float, float]] = {}
    for i, call in enumerate(calls):
        path_us, work_us = rank.get(call.stream, (0.0, 0.0))
        cost_us = call.bound.work_us
        rank[call.stream] = (path_us + cost_us * (i in critical), work_us + cost_us)
    order = sorted(rank, key=lambda stream: (*(-us for us in rank[stream]), stream))
    number = {stream: place for place, stream in enumerate(order)}
    return [replace(call, stream=number[call.stream]) for call in calls]


def _critical_path(calls: Sequence[StreamCall], first: int) -> set[int]:
    """Members of the longest chain of calls that wait for each other, by estimated work."""
    ends_us: list[float] = []
    through: list[int | None] = []
    last_on: dict[int, int] = {}
    for i, call in enumerate(calls):
        earlier = list(_members(call.after >> first))
        if call.stream in last_on:
            earlier.append(last_on[call.stream])
        latest = max(earlier, key=lambda j: ends_us[j], default=None)
        through.append(latest)
        ends_us.append(call.bound.work_us + (0.0 if latest is None else ends_us[latest]))
        last_on[call.stream] = i
    path: set[int] = set()
    at = max(range(len(calls)), key=lambda i: ends_us[i], default=None)
    while at is not None:
        path.add(at)
        at = through[at]
    return path


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
