"""A stream plan laid out on a fixed number of threads.

Streams are what the planner asked for; *lanes* are the threads that exist. Between two barriers
the plan is one segment; each segment runs on as many lanes as it has streams, at most one a
thread, and the threads are divided among the lanes in proportion to their work. No lane's team
crosses a group of cores that are near one another while it fits into one (lane_groups.py).

    segment, 2 threads:   s0: a b │ s1: c │ s2: d   ──>   lane 0: a b    lane 1: c d

Launches of streams that share a lane keep their launch order. Since a unit only ever waits for
units launched before it, running lanes in launch order cannot deadlock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from braid.core.errors import PreconditionFailed
from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import Strategy
from braid.engine.cpu.lane_groups import Groups, divide, group_sizes, pack
from braid.engine.program.program import NO_PARTS, BoundUnit, OpenedParts, Program, last_readers
from braid.engine.runtime.arrays import Array

Slots = list[Array | None]  # what ``program.Environment`` is on a CPU


@dataclass(frozen=True, slots=True)
class Step:
    """One launch in a lane."""

    unit: BoundUnit
    threads: int  # of its lane
    waits: tuple[int, ...]  # units in other lanes of the same segment
    signals: tuple[int, ...]  # the unit, or its merged units, if another lane waits for them
    releases: tuple[int, ...] = ()  # slots that are not read after this step (single-lane segments)


@dataclass(frozen=True, slots=True)
class Segment:
    """Lanes that run side by side between two barriers."""

    lanes: tuple[tuple[Step, ...], ...]
    threads: tuple[int, ...]  # intra-operator threads of each lane, which follow one another
    releases: tuple[int, ...] = ()  # slots that are not read after this segment

    @property
    def signals(self) -> tuple[int, ...]:
        """Units that other lanes wait for."""
        return tuple(unit for lane in self.lanes for step in lane for unit in step.signals)


def lay_out(
    program: Program,
    plan: StreamPlan,
    threads: int,
    opened: OpenedParts = NO_PARTS,
    groups: Groups = (),
) -> tuple[Segment, ...]:
    """Assign every launch of a verified plan to a lane; ``groups``: threads of near cores or ().

    Raises ``PreconditionFailed`` if a part on several threads would run beside another lane.
    """
    position = {launch.unit: i for i, launch in enumerate(plan.launches)}
    last = last_readers(program, [position[unit] for unit in range(len(program.units))])
    freed_at: dict[int, list[int]] = {}
    for slot, at in last.items():
        freed_at.setdefault(at, []).append(slot)
    segments, start = [], 0
    for launches in filter(None, plan.segments()):
        positions = range(start, start + len(launches))
        freed = {at: tuple(freed_at.get(at, ())) for at in positions}
        merges = [units for units in plan.merges if position[units[0]] in positions]
        delegated = [part for part in plan.parts if position[part.units[0]] in positions]
        has_lanes = len({launch.stream for launch in launches}) > 1
        if has_lanes and any(part.threads > 1 for part in delegated):
            raise PreconditionFailed("an engine on several threads runs beside no other lane")
        bound = {part.units: opened[part] for part in delegated}
        part = _Part(launches, tuple(freed.values()), [*merges, *bound], bound)
        segments.append(_segment(program, part, threads, groups))
        start += len(launches)
    return tuple(segments)


def lay_out_stage(
    program: Program,
    groups: Sequence[Sequence[int]],
    threads: int,
    strategy: Strategy = "concurrent",
    delegated: Sequence[BoundUnit | None] = (),
    near: Groups = (),
) -> Segment:
    """One stage as in a plan, group i on stream i; ``delegated`` replaces the units of a group."""
    launches = [Launch(unit, stream) for stream, group in enumerate(groups) for unit in group]
    opened = {tuple(group): unit for group, unit in zip(groups, delegated, strict=False) if unit}
    merges = groups if strategy == "merge" else list(opened)
    part = _Part(launches, [()] * len(launches), merges, opened)
    return _segment(program, part, threads, near)


@dataclass(frozen=True, slots=True)
class _Part:
    """Launches between two barriers, what each one frees, and which run as one kernel or part."""

    launches: Sequence[Launch]
    freed: Sequence[tuple[int, ...]]
    merges: Sequence[Sequence[int]]
    opened: Mapping[tuple[int, ...], BoundUnit] = field(default_factory=dict)

    def kernels(self) -> Iterator[tuple[tuple[Launch, ...], tuple[int, ...]]]:
        """The launches of each kernel, and the slots that are free after it."""
        merged = {unit: len(units) for units in self.merges for unit in units}
        at = 0
        while at < len(self.launches):
            end = at + merged.get(self.launches[at].unit, 1)
            slots = tuple(slot for slots in self.freed[at:end] for slot in slots)
            yield tuple(self.launches[at:end]), slots
            at = end


def _segment(program: Program, part: _Part, threads: int, groups: Groups = ()) -> Segment:
    launches, work = part.launches, dict[int, float]()
    for launch in launches:
        cost = program.units[launch.unit].work_us
        work[launch.stream] = work.get(launch.stream, 0.0) + cost
    lane_of, load = pack(work, min(threads, len(work)))
    order, given = divide(load, group_sizes(groups, threads))
    lane_of = {stream: order.index(lane) for stream, lane in lane_of.items()}
    unit_lane = {launch.unit: lane_of[launch.stream] for launch in launches}
    waited = {
        other
        for launch in launches
        for other in launch.waits
        if other in unit_lane and unit_lane[other] != unit_lane[launch.unit]
    }
    single = len(load) == 1
    lanes: list[list[Step]] = [[] for _ in load]
    for together, slots in part.kernels():
        lane = unit_lane[together[0].unit]
        units = tuple(launch.unit for launch in together)
        unit = part.opened.get(units) or program.unit(units)
        others = {wait for launch in together for wait in launch.waits}
        lanes[lane].append(
            Step(
                unit=unit,
                threads=given[lane],
                waits=tuple(sorted(w for w in others if unit_lane.get(w, lane) != lane)),
                signals=tuple(launch.unit for launch in together if launch.unit in waited),
                releases=slots if single else (),
            )
        )
    return Segment(
        lanes=tuple(tuple(lane) for lane in lanes),
        threads=given,
        releases=() if single else tuple(slot for slots in part.freed for slot in slots),
    )
