"""Stream plans: the form to which all plans are lowered and that executors run.

A plan says in which order the host launches the units, on which stream each runs, which units
of other streams it waits for, and where all streams join (a *barrier*, the end of a stage).

    launches:  0:a(s0)  1:b(s0)  2:c(s1, waits a) | 3:d(s0)      | = barrier before position 3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from braid.core.errors import InvalidArtefact
from braid.core.json_form import from_json, to_json
from braid.core.runtimes import RUNTIMES

MAX_STREAMS = 8

NO_MORE = "which this version does not run; `braid schedule again MODEL` makes another"


class Launch(NamedTuple):
    """One unit on one stream. Units on one stream run in launch order."""

    unit: int  # index into OpGraph.operators
    stream: int
    waits: tuple[int, ...] = ()  # units on other streams that must have finished first


@dataclass(frozen=True, slots=True)
class EnginePart:
    """Units of a static graph that an engine runs as one, cut out of the model's file.

    Parts with ``rows`` divide a batch: all of them have all units of the plan, and they run side by
    side, each on lanes of its own, the first one on the first rows.
    """

    units: tuple[int, ...]  # launched in a row on one stream
    engine: str  # of braid.core.runtimes; empty, of some rows: own kernels
    version: str  # of the engine; of another one nothing is known
    threads: int  # that it was measured on: all of the device, or those of one lane
    rows: int = 0  # of the batch; 0: all of them


def engine_text(part: EnginePart) -> str:
    """What runs a part, for users: ``OpenVINO 2025.3 on 1 thread``."""
    engine = f"{RUNTIMES.get(part.engine, part.engine)} {part.version}" if part.engine else ""
    threads = "1 thread" if part.threads == 1 else f"{part.threads} threads"
    return f"{engine or 'own kernels'} on {threads}"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Launch order, streams and events of one static graph.

    ``barriers`` holds positions in ``launches``, ascending; before each one, every stream waits
    for all earlier launches. Waits across a barrier are implied and left out.
    """

    launches: tuple[Launch, ...]
    streams: int
    barriers: tuple[int, ...] = ()
    merges: tuple[tuple[int, ...], ...] = ()  # units that run as one kernel, launched in a row
    parts: tuple[EnginePart, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= MAX_STREAMS:
            raise InvalidArtefact(f"a plan has 1 to {MAX_STREAMS} streams, not {self.streams}")
        if any(not 0 <= launch.stream < self.streams for launch in self.launches):
            raise InvalidArtefact("a launch names a stream that the plan does not have")
        inner = all(0 < position < len(self.launches) for position in self.barriers)
        if not inner or list(self.barriers) != sorted(set(self.barriers)):
            raise InvalidArtefact("barriers must be ascending positions inside the launch order")
        self._check_merges()

    def _check_merges(self) -> None:
        position = {launch.unit: i for i, launch in enumerate(self.launches)}
        divided = [part for part in self.parts if part.rows]
        parts = [part.units for part in self.parts if not part.rows]
        parts += [part.units for part in divided[:1]]
        if divided and (
            len(divided) < len(self.parts)
            or self.merges
            or any(part.units != tuple(position) for part in divided)
        ):
            raise InvalidArtefact("parts of some rows each have all units, and none is beside them")
        together = *self.merges, *parts
        merged = [unit for units in together for unit in units]
        if len(merged) != len(set(merged)) or not set(merged) <= set(position):
            raise InvalidArtefact("a unit is merged twice, or merged and never launched")
        for units in together:
            places = [position[unit] for unit in units]
            in_a_row = (len(units) > 1 or units in parts) and places == list(
                range(places[0], places[0] + len(units))
            )
            streams = {self.launches[place].stream for place in places}
            if not in_a_row or len(streams) > 1 or set(places[1:]) & set(self.barriers):
                raise InvalidArtefact(
                    f"the units {list(units)} run as one kernel: at least two, launched in a row "
                    "on one stream, with no barrier between them; or one, in an engine"
                )

    def segments(self) -> tuple[tuple[Launch, ...], ...]:
        """Return the launches between barriers: the stages, in order."""
        cuts = [0, *self.barriers, len(self.launches)]
        return tuple(self.launches[start:end] for start, end in pairwise(cuts))


def sequential_plan(units: int) -> StreamPlan:
    return StreamPlan(tuple(Launch(unit, 0) for unit in range(units)), streams=1)


def runs_in_sequence(plan: StreamPlan) -> bool:
    """True if units run strictly one after the other: the sequential plan, perhaps reordered.

    So they do where each launch follows the one before it on its stream, waits for it, or has a
    barrier before it. Units that run as one kernel are no sequence, nor are those in an engine.
    """
    return not (plan.merges or plan.parts) and all(
        later.stream == earlier.stream or earlier.unit in later.waits or position in plan.barriers
        for position, (earlier, later) in enumerate(pairwise(plan.launches), start=1)
    )


def verify_plan(plan: StreamPlan, predecessors: Sequence[Sequence[int]]) -> None:
    """Prove that a plan runs each unit once and respects every edge.

    An edge u -> v is respected if v is launched after u on the same stream, or waits for a unit
    that comes after u (transitively), or a barrier stands between them. Proved with one bit set
    per launch: what is certain to have finished when the unit starts.

    ``predecessors``: for each unit, the units it reads from. Raises InvalidArtefact, which names
    the unit, the edge or the merged units at fault.
    """
    order = [launch.unit for launch in plan.launches]
    if sorted(order) != list(range(len(predecessors))):
        raise InvalidArtefact(f"the plan does not launch each of {len(predecessors)} units once")
    finished: dict[int, int] = {}  # unit -> bit set of units finished when it has finished
    last_on: dict[int, int] = {}  # stream -> finished set of its last launch
    before_barrier, barriers = 0, set(plan.barriers)
    together = {unit: units for units in plan.merges for unit in units}
    for position, launch in enumerate(plan.launches):
        if position in barriers:
            for done in finished.values():
                before_barrier |= done
        done = before_barrier | last_on.get(launch.stream, 0)
        for other in launch.waits:
            if other not in finished:
                raise InvalidArtefact(f"unit {launch.unit} waits for {other}, launched later")
            done |= finished[other]
        for needed in predecessors[launch.unit]:
            if needed in together.get(launch.unit, ()):
                raise InvalidArtefact(f"unit {launch.unit} reads from {needed}, merged with it")
            if not done >> needed & 1:
                raise InvalidArtefact(
                    f"unit {launch.unit} reads from {needed} but nothing makes it wait for it"
                )
        finished[launch.unit] = last_on[launch.stream] = done | 1 << launch.unit


def plan_to_json(plan: StreamPlan) -> dict[str, Any]:
    document = to_json(plan)
    if not plan.parts:  # ids are hashes of this, also of plans from before there were parts
        del document["parts"]
    return document


def plan_from_json(document: Any) -> StreamPlan:
    """Read a plan. Raises InvalidArtefact, also for threads or bands as of a9f91505 and before."""
    try:
        if "bands" in document or any(len(launch) > 3 for launch in document["launches"]):
            raise InvalidArtefact(f"the plan has teams or bands, {NO_MORE}")
        return from_json(StreamPlan, document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArtefact(f"the stream plan is malformed: {error!r}") from error
