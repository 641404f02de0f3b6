"""Teams of lanes in groups of cores that are near one another.

    groups of 4 + 4, loads 5 3 2 1  ──>  │ 5: 0 1 2 · 1: 3 │ 3: 4 5 · 2: 6 7 │
    groups of 4 + 4, loads 3 1      ──>  │ 3: 0 1 2 3      │ 1: 4 5 6 7      │

A team that fits into a group lies in one; a larger team has whole groups.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Groups = Sequence[Sequence[int]]  # threads of a device that are near one another, by group

_Key = TypeVar("_Key", bound=Hashable)


def group_sizes(groups: Groups, threads: int) -> list[int]:
    """Threads of each group, in order; one group where they do not lie one after the other."""
    in_order = [thread for group in groups for thread in group]
    return [len(group) for group in groups] if in_order == list(range(threads)) else [threads]


def pack(work: Mapping[_Key, float], bins: int) -> tuple[dict[_Key, int], list[float]]:
    """Bin of each item and load of each bin; largest items first, to the emptiest bin."""
    load = [0.0] * bins
    bin_of: dict[_Key, int] = {}
    for item in sorted(work, key=lambda item: (-work[item], item)):
        emptiest = load.index(min(load))
        bin_of[item] = emptiest
        load[emptiest] += work[item]
    return bin_of, load


def divide(load: Sequence[float], sizes: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Lanes in the order in which they lie on the threads, and the threads of each, in that order.

    Each lane has at least one thread; the others are where the most work per thread is.
    """
    if len(load) <= len(sizes):
        order = list(range(len(load)))
        return order, _of_whole_groups(load, sizes)
    lanes_of = _lanes_by_group(load, sizes)
    order, given = list[int](), list[int]()
    for lanes, size in zip(lanes_of, sizes, strict=True):
        lanes.sort()
        order += lanes
        given += _of_one_group([load[lane] for lane in lanes], size)
    return order, tuple(given)


def _of_whole_groups(load: Sequence[float], sizes: Sequence[int]) -> tuple[int, ...]:
    """Threads of each lane, which has one or more groups that follow one another."""
    counts = _of_one_group(load, len(sizes))  # groups of each lane
    ends = [sum(counts[: lane + 1]) for lane in range(len(counts))]
    return tuple(sum(sizes[end - count : end]) for end, count in zip(ends, counts, strict=True))


def _lanes_by_group(load: Sequence[float], sizes: Sequence[int]) -> list[list[int]]:
    """Lanes of each group, at least one and no more than it has threads, by load per thread."""
    lanes: list[list[int]] = [[] for _ in sizes]
    work = [0.0] * len(sizes)
    left = len(load)
    for lane in sorted(range(len(load)), key=lambda lane: (-load[lane], lane)):
        empty = [group for group in range(len(sizes)) if not lanes[group]]
        free = [group for group, size in enumerate(sizes) if len(lanes[group]) < size]
        among = empty if len(empty) == left else free
        chosen = min(among, key=lambda group: ((work[group] + load[lane]) / sizes[group], group))
        lanes[chosen].append(lane)
        work[chosen] += load[lane]
        left -= 1
    return lanes


def _of_one_group(load: Sequence[float], threads: int) -> tuple[int, ...]:
    given = [1] * len(load)
    for _ in range(threads - len(load)):
        given[max(range(len(load)), key=lambda lane: load[lane] / given[lane])] += 1
    return tuple(given)


def in_groups(cores: Sequence[int], groups: Groups) -> tuple[int, ...]:
    """``cores`` so that those of a group follow one another; ``groups`` has their positions."""
    return tuple(cores[position] for group in groups for position in group)
