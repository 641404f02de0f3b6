"""A synthetic device: how long stages and stream plans take, without any hardware.

It exists to compare planners and to count measurements; it predicts no real device. The model:

* A unit alone runs for ``max(compute, memory)`` time. It fills ``share`` of the multiprocessors
  (output elements over the elements that fill the device), reaches a seeded fraction of the peak
  on them, and uses the memory bandwidth that its bytes need in that time.
* Units side by side share the multiprocessors max-min fairly: those that want little get it, the
  others share the rest. If together they want more bandwidth than there is, all slow down alike.
  Each further unit slows all of them by ``interference`` (caches, schedulers).
* Fixed prices: ``launch_us`` before a unit uses anything, ``stage_us`` for each barrier,
  ``group_us`` for each stream forked after the first, ``event_us`` for each wait on an event.

Seeds vary the efficiency of each kind and shape of unit, which is what differs most between real
devices and their peak.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.core.measurement import DeviceFacts, StageOverheads, UnitProfile
from braid.core.plan import Launch, StreamPlan
from braid.core.schedule import Stage
from braid.scheduler.units import UnitGraph


@dataclass(frozen=True, slots=True)
class UnitLoad:
    """What one unit has to do."""

    flops: float
    bytes: float
    elements: float  # of its output: one for each thread


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """The parameters of a device; the fixed prices are those of a captured CUDA graph."""

    name: str
    flops_per_us: float
    bytes_per_us: float
    elements: float  # output elements in flight that fill the device
    launch_us: float = 1.0
    stage_us: float = 2.0
    group_us: float = 0.5
    event_us: float = 1.5
    interference: float = 0.005


DEVICES = {
    model.name: model
    for model in (
        DeviceModel("large", 60e6, 3000e3, 2_600_000),
        DeviceModel("medium", 15e6, 900e3, 1_300_000),
        DeviceModel("small", 8e6, 400e3, 320_000, 2.0, stage_us=4.0, group_us=1.0, event_us=3.0),
    )
}


@dataclass(frozen=True, slots=True)
class _Body:
    """A unit on this device, alone, after its launch."""

    us: float
    share: float  # of the multiprocessors
    memory: float  # of the bandwidth


class SyntheticDevice:
    """A device model with a seed, for the units of one graph."""

    def __init__(
        self, model: DeviceModel, graph: UnitGraph, loads: Sequence[UnitLoad], seed: int
    ) -> None:
        self.model = model
        self._bodies = [
            _body(model, load, _fraction(seed, signature))
            for load, signature in zip(loads, graph.signatures, strict=True)
        ]

    @property
    def facts(self) -> DeviceFacts:
        """What an engine would measure: the fixed prices, and the use of each resource."""
        model = self.model
        return DeviceFacts(
            overheads=StageOverheads(model.stage_us, model.group_us, model.launch_us),
            profiles=tuple(
                UnitProfile(
                    work_us=(body.us * body.share, body.us * body.memory),
                    demand=body.share,
                    memory_bound=body.memory >= 0.99,
                )
                for body in self._bodies
            ),
        )

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of one stage, barrier included."""
        return self._fixed_us(len(stage.groups)) + self._run(stage.groups, {})

    def plan_latency_us(self, plan: StreamPlan) -> float:
        """Latency of a whole plan. Between barriers, streams run until all have finished."""
        total = 0.0
        for segment in plan.segments():
            streams: dict[int, list[int]] = {}
            for launch in segment:
                streams.setdefault(launch.stream, []).append(launch.unit)
            total += self._fixed_us(len(streams)) + self._run(
                list(streams.values()), _waits(segment)
            )
        return total

    def _fixed_us(self, streams: int) -> float:
        return self.model.stage_us + self.model.group_us * (streams - 1)

    def _run(self, streams: Sequence[Sequence[int]], waits: Mapping[int, tuple[int, ...]]) -> float:
        """Time until all streams are empty; fluid: rates change when a unit starts or ends."""
        now = 0.0
        queues = [list(reversed(stream)) for stream in streams]
        unfinished = {unit for stream in streams for unit in stream}
        launching: dict[int, float] = {}  # unit -> time left until it uses the device
        running: dict[int, float] = {}  # unit -> time left if it were alone
        idle = list(range(len(queues)))
        stream_of = {unit: i for i, stream in enumerate(streams) for unit in stream}
        while unfinished:
            for stream in [s for s in idle if queues[s]]:
                unit = queues[stream][-1]
                blockers = waits.get(unit, ())
                if unfinished.isdisjoint(blockers):
                    queues[stream].pop()
                    idle.remove(stream)
                    launching[unit] = self.model.launch_us + self.model.event_us * len(blockers)
            rates = self._rates(running)
            step = min(
                [*launching.values(), *(left / rates[unit] for unit, left in running.items())]
            )
            now += step
            launched = [unit for unit, left in launching.items() if left <= step]
            ended = [u for u, left in running.items() if left <= step * rates[u] * (1 + 1e-12)]
            launching = {unit: left - step for unit, left in launching.items() if left > step}
            for unit in running:
                running[unit] -= step * rates[unit]
            for unit in ended:
                del running[unit]
                unfinished.discard(unit)
                idle.append(stream_of[unit])
            running.update({unit: self._bodies[unit].us for unit in launched})
        return now

    def _rates(self, running: Mapping[int, float]) -> dict[int, float]:
        """Speed of each running unit, 1 being its speed alone."""
        left, waiting = 1.0, len(running)
        rates: dict[int, float] = {}
        for unit in sorted(running, key=lambda unit: self._bodies[unit].share):
            given = min(self._bodies[unit].share, left / waiting)
            rates[unit] = given / self._bodies[unit].share
            left -= given
            waiting -= 1
        bandwidth = sum(self._bodies[unit].memory * rate for unit, rate in rates.items())
        slowdown = max(1.0, bandwidth) * (1 + self.model.interference * (len(running) - 1))
        return {unit: rate / slowdown for unit, rate in rates.items()}


def _body(model: DeviceModel, load: UnitLoad, chance: float) -> _Body:
    share = min(1.0, max(load.elements / model.elements, 1 / 256))
    efficiency = 0.4 + 0.5 * chance
    compute = load.flops / (model.flops_per_us * share * efficiency)
    memory = load.bytes / (model.bytes_per_us * min(1.0, 2 * share))  # half the device saturates it
    us = max(compute, memory, 0.5)
    return _Body(us, share, load.bytes / model.bytes_per_us / us)


def _fraction(seed: int, text: str) -> float:
    """A number in [0, 1) that depends on seed and text alone."""
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def _waits(segment: Sequence[Launch]) -> dict[int, tuple[int, ...]]:
    """Waits for units of the same segment; the others are over."""
    here = {launch.unit for launch in segment}
    return {
        launch.unit: tuple(other for other in launch.waits if other in here) for launch in segment
    }
