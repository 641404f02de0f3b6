"""Which lanes' cores are near one another, by round trips of a cache line (native/distances.c).

    cores ──shared L3 caches (sysfs)──> islands ──a few round trips──> do they hold? ──> groups

All pairs are measured of a few cores. Of many, each is measured with the first core of its island,
and first cores with each other; a core that is far from its first one begins another island, so
what sysfs says holds only where round trips agree. A virtual machine's sysfs says nothing of where
its host runs the cores.

Near is what lies below the first gap between round trips: 370 ns after 45, or 210 after 48. Of
round trips without a gap, ``NEAR_NS`` decides.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations, pairwise
from math import inf, sqrt
from pathlib import Path
from statistics import median
from time import monotonic

from braid.core.cpu_layout import CPU_FOLDERS, LARGEST_CACHE, cores_alike
from braid.core.device_state import UNKNOWN, DeviceState
from braid.engine.cpu.native.find import find_native

NEAR_NS = 150.0
"""Round trips of 40 to 110 ns were seen between cores of one L3 cache, of 160 to 500 between
chiplets and sockets (AMD Zen 3 to 5, Intel Xeon)."""

MOST_NS = 3000.0
"""What takes longer is no distance: the host of a virtual machine has taken a core away meanwhile
(5,000 to 14,000 ns were seen where the cores are 60 or 310 apart)."""

GAP = 1.5  # ratio of two round trips, none between them, that tells near from far
ALL_PAIRS = 8  # cores, at most, of which all pairs are measured

TRIPS, ROUNDS = 100, 5  # trips of a round; the quickest round counts: 0.1 to 0.3 ms a pair

PAIR_S, ALL_S = 0.004, 0.4
"""Seconds, at most, of a pair and of all pairs. Where other processes have the cores, nothing can
be told in that time. What failed is measured once more."""

AT_ONCE = 4  # pairs between two pauses, in which requests are answered
LOOKS = 3  # looks, at most, until two agree that the state is another one


Pair = tuple[int, int]
Lanes = Sequence[int]

RoundTrips = Callable[[Sequence[Pair]], Sequence[float | None]]
"""Nanoseconds of a round trip between two cores, of each pair; None: it could not be measured."""

Islands = Callable[[Sequence[int]], list[Lanes]]
"""Divides lanes by what the system says of the caches of their cores, whose numbers are given."""


class CoreProbe:
    """Looks at the distances between cores; lane i runs on core i of them."""

    def __init__(
        self,
        cores: Sequence[int],
        round_trips: RoundTrips | None = None,
        islands: Islands | None = None,
    ) -> None:
        """Look at nothing yet; without ``round_trips`` those of the part in C, if there is one."""
        self._cores = tuple(cores)
        self._round_trips = round_trips
        self._islands = islands or shared_caches
        self._state = UNKNOWN

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Lanes that were near one another at the last look; empty: not known."""
        return self._state.groups

    def move_to(self, cores: Sequence[int]) -> None:
        self._cores = tuple(cores)

    def look(self, pause: Callable[[], object] = lambda: None) -> DeviceState:
        """The present state, else that of the last look; two looks in a row confirm a new one."""
        round_trips = self._round_trips or partial(measure_round_trips, pause=pause)
        name = self._state.name
        for _ in range(LOOKS):
            distance_ns = find_distances(self._cores, self._islands(self._cores), round_trips)
            if distance_ns is None:
                break
            state = DeviceState(near_groups(distance_ns), distance_ns)
            if state.name in (name, self._state.name):
                self._state = state
                break
            name = state.name
        return self._state


def find_distances(
    cores: Sequence[int], islands: Sequence[Lanes], round_trips: RoundTrips
) -> tuple[tuple[float, ...], ...] | None:
    """Round trips between all cores in nanoseconds, [lane, lane]; None: they cannot be told."""
    if len(cores) <= ALL_PAIRS:
        islands = [[lane] for lane in range(len(cores))]
    trips_ns: dict[Pair, float] = {}
    while True:
        firsts = [island[0] for island in islands]
        pairs = list(combinations(firsts, 2))
        pairs += [(island[0], lane) for island in islands for lane in island[1:]]
        fresh = [pair for pair in pairs if pair not in trips_ns]
        for pair, trip_ns in zip(fresh, _measured(cores, fresh, round_trips), strict=True):
            if trip_ns is None:
                return None
            trips_ns[pair] = trips_ns[pair[::-1]] = trip_ns
        near_ns = near_limit_ns(trips_ns[pair] for pair in pairs)
        strays = [
            [lane for lane in island[1:] if trips_ns[island[0], lane] > near_ns]
            for island in islands
        ]
        if not any(strays):
            break
        islands = [
            [lane for lane in island if lane not in stray]
            for island, stray in zip(islands, strays, strict=True)
        ] + list(filter(None, strays))
    first_of = {lane: island[0] for island in islands for lane in island}
    return tuple(
        tuple(_between(one, other, first_of, trips_ns) for other in range(len(cores)))
        for one in range(len(cores))
    )


def _measured(
    cores: Sequence[int], pairs: Sequence[Pair], round_trips: RoundTrips
) -> Sequence[float | None]:
    trips_ns = round_trips([(cores[one], cores[other]) for one, other in pairs]) if pairs else ()
    return [None if trip_ns is None or trip_ns > MOST_NS else trip_ns for trip_ns in trips_ns]


def _between(one: int, other: int, first_of: dict[int, int], trips_ns: dict[Pair, float]) -> float:
    first, second = first_of[one], first_of[other]
    if one == other:
        return 0.0
    if first != second:
        return trips_ns[first, second]
    return max(trips_ns[first, lane] for lane in (one, other) if lane != first)


def near_limit_ns(trips_ns: Iterable[float]) -> float:
    """Round trip up to which two cores are near each other, among all that were measured.

    It lies in the lowest gap that ends above ``NEAR_NS``. Without one, all are near if the median
    is at most ``NEAR_NS``, and none otherwise.
    """
    ordered = sorted(trips_ns)
    for below, above in pairwise(ordered):
        if above > NEAR_NS and above >= GAP * below:
            return sqrt(below * above)
    return inf if not ordered or median(ordered) <= NEAR_NS else 0.0


def near_groups(distance_ns: Sequence[Sequence[float]]) -> tuple[tuple[int, ...], ...]:
    """Lanes that are near one another, or near one that both are near, by their distances."""
    lanes = range(len(distance_ns))
    limit_ns = near_limit_ns(distance_ns[one][other] for one, other in combinations(lanes, 2))
    group_of = list(lanes)
    for one, other in combinations(lanes, 2):
        if distance_ns[one][other] <= limit_ns:
            low, high = sorted((group_of[one], group_of[other]))
            group_of = [low if group == high else group for group in group_of]
    return tuple(
        tuple(lane for lane in lanes if group_of[lane] == group) for group in sorted({*group_of})
    )


def measure_round_trips(
    pairs: Sequence[Pair], pause: Callable[[], object] = lambda: None
) -> list[float | None]:
    """Measure pairs of cores, one after the other; those that fail are tried once more."""
    trips_ns: dict[Pair, float] = {}
    for _ in range(2):
        left, until = [pair for pair in pairs if pair not in trips_ns], monotonic() + ALL_S
        while left and monotonic() < until:
            now, left = left[:AT_ONCE], left[AT_ONCE:]
            measured = zip(now, _measure(now), strict=True)
            trips_ns |= {pair: trip_ns for pair, trip_ns in measured if trip_ns > 0}
            pause()
    return [trips_ns.get(pair) for pair in pairs]


def _measure(pairs: Sequence[Pair]) -> Sequence[float]:
    """Round trips of a few pairs in nanoseconds; negative: it could not be measured."""
    native = find_native()
    trips_ns = (ctypes.c_double * len(pairs))(*[-1.0] * len(pairs))
    if native is not None:
        cores = (ctypes.c_int32 * (2 * len(pairs)))(*(core for pair in pairs for core in pair))
        limits = TRIPS, ROUNDS, round(PAIR_S * 1e9)
        native.braid_core_distances(cores, len(pairs), *limits, trips_ns)
    return list(trips_ns)


def shared_caches(cores: Sequence[int], folders: Path = CPU_FOLDERS) -> list[Lanes]:
    """Numbers of ``cores`` that share their largest cache by sysfs; without sysfs, all of them."""
    lanes = {core: lane for lane, core in enumerate(cores)}
    islands = cores_alike(cores, LARGEST_CACHE, folders)
    return [[lanes[core] for core in island] for island in islands]
