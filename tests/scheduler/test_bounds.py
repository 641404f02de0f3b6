"""Bounds are never above the latency, on the synthetic devices too; and they are not idle."""

from __future__ import annotations

import random

import pytest

from benchmarks.structures import googlenet
from benchmarks.synthetic import DEVICES, SyntheticDevice
from braid.core.measurement import DeviceFacts
from braid.core.schedule import Stage
from braid.scheduler.bounds import LatencyBounds
from braid.scheduler.dag import Dag, bits
from braid.scheduler.endings import Endings, Pruning

STRUCTURE = googlenet()
MODULE = tuple(range(5, 12))  # the first inception module


@pytest.mark.parametrize("name", sorted(DEVICES))
@pytest.mark.parametrize("seed", range(3))
def test_no_stage_is_faster_than_its_bound(name: str, seed: int) -> None:
    device = SyntheticDevice(DEVICES[name], STRUCTURE.units, STRUCTURE.loads, seed)
    endings = Endings(Dag.of(STRUCTURE.units.restrict(MODULE).predecessors), Pruning())
    alone_us = [device.stage_latency_us(Stage(((unit,),))) for unit in MODULE]
    bounds = LatencyBounds(alone_us, MODULE, device.facts)
    blind = LatencyBounds(alone_us, MODULE, DeviceFacts())
    rng = random.Random(seed)

    tight = 0
    for state in list(endings.states)[1:]:
        for ending in rng.sample(endings.of(state), min(20, len(endings.of(state)))):
            groups = endings.groups(ending)
            named = tuple(tuple(MODULE[unit] for unit in bits(group)) for group in groups)
            latency = device.stage_latency_us(Stage(named))
            learnt = bounds.from_sub_stages(ending, len(groups), 0)
            bound = max(bounds.of(("concurrent", groups)), learnt)
            assert bound <= latency * (1 + 1e-3)  # sharing may shift units: nearly monotone
            assert blind.of(("concurrent", groups)) <= latency * (1 + 1e-9)
            bounds.learn(ending, len(groups), latency)
            tight += bound > 0.9 * latency
    assert tight > 0


def test_a_merged_kernel_is_bounded_by_its_slowest_unit() -> None:
    bounds = LatencyBounds([3.0, 5.0], (0, 1), DeviceFacts())

    assert bounds.of(("merge", (0b11,))) == 5.0
