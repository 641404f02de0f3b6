"""From stages to a stream plan: launch order, streams, barriers or events.

    stages  [ (a) (b c) ] [ (d) ]   ──>   b(s0) c(s0) a(s1) | d(s0)       | = barrier

The longest group runs on stream 0, so that the other streams finish within it. Between two
stages of one group each no barrier is needed: both run on stream 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.plan import MAX_STREAMS, Launch, StreamPlan, verify_plan
from core.schedule import Stage
from scheduler.streams import plan_with_events


def lower_stages(
    stages: Sequence[Stage],
    predecessors: Sequence[Sequence[int]],
    unit_latency_us: Sequence[float] | None = None,
    max_streams: int = MAX_STREAMS,
    barriers: bool = True,
) -> StreamPlan:
    """Lower stages to a plan.

    Args:
        stages: together they hold each unit once, in an order that respects every edge.
        predecessors: for each unit, the units it reads from.
        unit_latency_us: decides which groups are long; without it, the number of units does.
        max_streams: groups beyond this number share streams, the least loaded one first.
        barriers: whether a stage waits for the whole stage before it, as it was measured. If
            not, each unit waits for what it reads only, by the fewest events.

    Raises:
        InvalidArtefact: the stages do not respect an edge.
    """
    launches: list[Launch] = []
    positions: list[int] = []
    previous_streams = 1
    for stage in stages:
        streams = _streams(stage, unit_latency_us, max_streams)
        if launches and max(previous_streams, len(streams)) > 1:
            positions.append(len(launches))
        for number, units in enumerate(streams):
            launches += [Launch(unit, number) for unit in units]
        previous_streams = len(streams)
    if not barriers:
        order = [launch.unit for launch in launches]
        stream_of = {launch.unit: launch.stream for launch in launches}
        return plan_with_events(order, stream_of, predecessors)
    width = 1 + max((launch.stream for launch in launches), default=0)
    plan = StreamPlan(tuple(launches), width, tuple(positions))
    verify_plan(plan, predecessors)
    return plan


def _streams(
    stage: Stage, unit_latency_us: Sequence[float] | None, max_streams: int
) -> list[list[int]]:
    """The groups of a stage dealt to streams, longest first, each to the least loaded stream."""

    def length(group: tuple[int, ...]) -> float:
        return sum(unit_latency_us[unit] for unit in group) if unit_latency_us else len(group)

    longest_first = sorted(stage.groups, key=length, reverse=True)
    streams: list[list[int]] = [[] for _ in range(min(max_streams, len(longest_first)))]
    load = [0.0] * len(streams)
    for group in longest_first:
        number = load.index(min(load))
        streams[number] += group
        load[number] += length(group)
    return streams
