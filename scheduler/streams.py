"""Lowering of units on streams to a stream plan with as few events as dependencies allow.

An event makes one unit wait for one unit of another stream. It is left out where something else
already guarantees the order: the stream itself, or a wait, of this unit or of an earlier one.

    s0: a ──> b          c needs a and b: it waits for b only, since b comes after a
    s1:       c
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from braid.core.plan import Launch, StreamPlan, verify_plan
from braid.scheduler.dag import Dag, bits, mask_of

Stream = tuple[int, ...]
"""Units of one stream, in launch order."""


@dataclass(frozen=True, slots=True)
class StreamSchedule:
    """Decision of a planner without stages."""

    launch_order: tuple[int, ...]
    streams: tuple[Stream, ...]  # as many as the planner wants


def lower_streams(
    schedule: StreamSchedule, predecessors: Sequence[Sequence[int]], max_streams: int
) -> StreamPlan:
    """A plan without barriers, on at most ``max_streams``. InvalidArtefact: an edge is broken."""
    stream_of = _fold(schedule, Dag.of(predecessors), max_streams)
    return plan_with_events(schedule.launch_order, stream_of, predecessors)


def plan_with_events(
    order: Iterable[int],
    stream_of: Mapping[int, int],
    predecessors: Sequence[Sequence[int]],
    merges: tuple[tuple[int, ...], ...] = (),
) -> StreamPlan:
    """A plan in which each unit waits for as few units as its edges allow."""
    launches: list[Launch] = []
    finished: dict[int, int] = {}  # unit -> units certain to have finished when it has
    last_on: dict[int, int] = {}  # stream -> the same, for its last launch
    for unit in order:
        certain = last_on.get(stream_of[unit], 0)
        missing = mask_of(predecessors[unit]) & ~certain
        waits = _latest(missing, finished)
        for other in waits:
            certain |= finished.get(other, 1 << other)  # verify_plan refuses unlaunched ones
        launches.append(Launch(unit, stream_of[unit], waits))
        finished[unit] = last_on[stream_of[unit]] = certain | 1 << unit
    width = 1 + max(stream_of.values(), default=0)
    plan = StreamPlan(tuple(launches), width, merges=merges)
    verify_plan(plan, predecessors)
    return plan


def _latest(units: int, finished: Mapping[int, int]) -> tuple[int, ...]:
    """The units that no other of them is certain to come after; unlaunched ones are kept."""
    done_by = [(unit, finished.get(unit, 1 << unit)) for unit in bits(units)]
    return tuple(
        unit
        for unit, _ in done_by
        if not any(done >> unit & 1 for other, done in done_by if other != unit)
    )


def _fold(schedule: StreamSchedule, dag: Dag, max_streams: int) -> dict[int, int]:
    """Deal the planner's streams to at most ``max_streams``, as their first units are launched.

    Taken is, in this order: a stream not used yet; one that has nothing left to launch, best if
    the new units come after its last one anyway; the one with the fewest launches left.
    """
    wanted = {unit: number for number, units in enumerate(schedule.streams) for unit in units}
    given: dict[int, int] = {}  # the planner's stream -> ours
    left: list[int] = []  # launches left on each of ours
    last: list[int] = []  # last unit launched on each of ours
    for unit in schedule.launch_order:
        number = wanted[unit]
        if number not in given:
            if len(left) < max_streams:
                given[number] = len(left)
                left.append(0)
                last.append(unit)
            else:
                ordered = [dag.ancestors[unit] >> end & 1 for end in last]
                given[number] = min(range(len(left)), key=lambda s: (left[s], not ordered[s]))
            left[given[number]] += len(schedule.streams[number])
        left[given[number]] -= 1
        last[given[number]] = unit
    return {unit: given[number] for unit, number in wanted.items()}


def makespan_us(plan: StreamPlan, unit_latency_us: Sequence[float]) -> float:
    """Latency of a plan on a device on which units never disturb each other."""
    finish: dict[int, float] = {}
    free = [0.0] * plan.streams
    barriers = set(plan.barriers)
    for position, launch in enumerate(plan.launches):
        if position in barriers:
            free = [max(free)] * plan.streams
        start = max([free[launch.stream], *(finish[other] for other in launch.waits)])
        finish[launch.unit] = free[launch.stream] = start + unit_latency_us[launch.unit]
    return max(free)
