"""Planners that go through the graph in waves: all units whose inputs are ready.

    wave 0: units that read from no other      wave k: units that read from wave k - 1 at the latest

``greedy`` is the baseline of IOS, section 6.1: each wave is one stage, each unit a group of its
own. ``rammer`` is the wavefront policy of Rammer (Ma et al., OSDI 2020, section 4.3, as Opara
implements it for streams): the same breadth-first waves, but a wave is dealt to a fixed number of
execution units, each unit of work to the one that is free first. Rammer's choice between kernels
of one operator and its fusion of waves into one kernel need its compiler and are left out.
"""

from braid.core.schedule import Stage
from braid.scheduler.problem import Problem


def greedy(problem: Problem) -> list[Stage]:
    """One stage a wave, one group a unit."""
    return [problem.stage([unit] for unit in wave) for wave in waves(problem)]


def rammer(problem: Problem) -> list[Stage]:
    """One stage a wave, at most one group a stream."""
    latency = problem.unit_latencies_us()
    stages = []
    for wave in waves(problem):
        streams: list[list[int]] = [[] for _ in wave[: problem.options.max_streams]]
        free = [0.0] * len(streams)
        for unit in wave:
            number = free.index(min(free))
            streams[number].append(unit)
            free[number] += latency[unit]
        stages.append(problem.stage(streams))
    return stages


def waves(problem: Problem) -> list[list[int]]:
    """The units of each wave, ascending."""
    depth: list[int] = []
    for row in problem.units.predecessors:
        depth.append(1 + max((depth[p] for p in row), default=-1))
    levels: list[list[int]] = [[] for _ in range(1 + max(depth, default=-1))]
    for unit, level in enumerate(depth):
        levels[level].append(unit)
    return levels
