"""Lowering of stages to a stream plan: launch order, streams, barriers or events.

    stages  [ (a) (b c) ] [ (d) ]   ──>   b(s0) c(s0) a(s1) | d(s0)       | = barrier

How stages are joined is a choice:

    stage   a barrier between stages, as they were measured
    group   no barriers: each group goes to the stream where it can start first, and waits for
            what it reads by the fewest events
    unit    the same for each unit, so that a group may spread over streams

Without barriers a stage may start while the one before it still runs. That is often faster, and
never certain to be: the stages were not measured so.
"""

from collections.abc import Sequence

from braid.core.plan import MAX_STREAMS, Launch, StreamPlan, verify_plan
from braid.core.schedule import Stage
from braid.scheduler.options import Join
from braid.scheduler.streams import plan_with_events

Group = tuple[int, ...]


def lower_stages(
    stages: Sequence[Stage],
    predecessors: Sequence[Sequence[int]],
    unit_latency_us: Sequence[float] | None = None,
    max_streams: int = MAX_STREAMS,
    join: Join = "stage",
) -> StreamPlan:
    """Lower stages, which hold each unit once, to a plan. InvalidArtefact: they break an edge.

    Without ``unit_latency_us`` all units are equally long; groups beyond ``max_streams`` share.
    """
    length_us = unit_latency_us or [1.0] * len(predecessors)
    if join != "stage":
        return _without_barriers(stages, predecessors, length_us, max_streams, join)
    launches: list[Launch] = []
    barriers: list[int] = []
    previous_streams = 1
    for stage in stages:
        streams = _streams(stage, length_us, max_streams)
        # Between two stages of one group each, stream 0 itself keeps the order.
        if launches and max(previous_streams, len(streams)) > 1:
            barriers.append(len(launches))
        for number, units in enumerate(streams):
            launches += [Launch(unit, number) for unit in units]
        previous_streams = len(streams)
    width = 1 + max((launch.stream for launch in launches), default=0)
    plan = StreamPlan(tuple(launches), width, tuple(barriers), _merges(stages))
    verify_plan(plan, predecessors)
    return plan


def _merges(stages: Sequence[Stage]) -> tuple[Group, ...]:
    return tuple(stage.groups[0] for stage in stages if stage.strategy == "merge")


def _streams(stage: Stage, length_us: Sequence[float], max_streams: int) -> list[list[int]]:
    """The groups of a stage dealt to streams, longest first, each to the least loaded stream.

    So the longest group is on stream 0, and the other streams finish within it.
    """
    streams: list[list[int]] = [[] for _ in range(min(max_streams, len(stage.groups)))]
    load = [0.0] * len(streams)
    for group in _longest_first(stage, length_us):
        number = load.index(min(load))
        streams[number] += group
        load[number] += sum(length_us[unit] for unit in group)
    return streams


def _longest_first(stage: Stage, length_us: Sequence[float]) -> list[Group]:
    return sorted(stage.groups, key=lambda group: -sum(length_us[unit] for unit in group))


def _without_barriers(
    stages: Sequence[Stage],
    predecessors: Sequence[Sequence[int]],
    length_us: Sequence[float],
    max_streams: int,
    join: Join,
) -> StreamPlan:
    """Launch in the order of the stages, each group on a stream where it can start first.

    Of these, one that makes an input of the group saves an event; else the one that was idle for
    the shortest time, which leaves the others to those that could start earlier.
    """
    merges = _merges(stages)
    groups = [group for stage in stages for group in _longest_first(stage, length_us)]
    if join == "unit":
        groups = [
            part
            for group in groups
            for part in ([group] if group in merges else [(unit,) for unit in group])
        ]
    stream_of: dict[int, int] = {}
    finish: dict[int, float] = {}
    free = [0.0] * max_streams
    for group in groups:
        inputs = {p for unit in group for p in predecessors[unit]} - set(group)
        ready = max((finish[p] for p in inputs if p in finish), default=0.0)
        near = {stream_of[p] for p in inputs if p in stream_of}
        number = min(
            range(max_streams),
            key=lambda s: (max(free[s], ready), s not in near, -free[s]),
        )
        start = max(free[number], ready)
        for unit in group:
            stream_of[unit] = number
            finish[unit] = start = start + length_us[unit]
        free[number] = start
    return plan_with_events(stream_of, stream_of, predecessors, merges)
