"""Which kernel runs each unit: the fastest one measured, remembered by the unit's signature.

    bench.kernels ──units with several variants──> in the store? ──no──> bench.measure_kernel
                                                        └─> fastest ─> ProgramKey.choices

Where one of the variants could only be measured while other processes had the cores, the usual one
runs, and nothing of that is stored.

A choice outlives the model it was made for: it is found again by any model with such a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from braid.core.graph import OpGraph
from braid.core.program import ProgramKey, UnitKernels, sorted_choices
from braid.server.jobs.interfaces import ServingDevice
from braid.server.jobs.retries import RetryWhileRestarting
from braid.server.jobs.scheduling.stage_measurements import in_store
from braid.server.store.store import Store

LEAST_GAIN = 0.05
"""By which another kernel must be faster than the usual one, relative to it ..."""

LEAST_GAIN_US = {"cpu": 5.0, "cuda": 0.5}
"""... and in time: measured alone, a kernel does not show what it costs its neighbours. On a GPU
they are kernels of a few microseconds in a graph, and there are no bursts to interrupt."""

HOPELESS = 1.5
"""A variant that takes this many times as long as the best one is not measured with care."""


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """Kernels of the units of a static graph that have several."""

    by_unit: Mapping[str, str]  # name of the unit -> variant
    program: ProgramKey  # on these kernels
    measured: int = 0  # variants, for this
    disturbed: int = 0  # of these, those that nothing was chosen by


async def choose_kernels(
    graph: OpGraph,
    program: ProgramKey,
    device: ServingDevice,
    store: Store,
    retry: RetryWhileRestarting,
) -> ChosenKernels:
    """Choose the fastest kernels of a program; measures what is not known yet.

    Args:
        graph: static graph of the program.
        program: on its usual kernels.
        device: to measure on.
        store: where latencies are kept, in microseconds.
        retry: of calls to the device.
    """
    known = _Latencies(program, device, store, retry)
    found = await retry(partial(device.bench.kernels, program))
    await known.remember(found)
    by_unit: dict[str, str] = {}
    choices: dict[str, str] = {}
    for kernels in found:
        variant = await known.fastest(kernels)
        by_unit |= {graph.operators[unit].name: variant for unit in kernels.units}
        if variant != kernels.variants[0]:
            choices[kernels.signature] = variant
    on_choices = replace(program, choices=sorted_choices(choices))
    return ChosenKernels(by_unit, on_choices, len(known.measured), len(known.disturbed))


def fastest(latencies_us: Mapping[str, float], device: str = "cpu") -> str:
    """Name of the variant to run on a device; the first of ``latencies_us`` is the usual one."""
    usual, usual_us = next(iter(latencies_us.items()))
    variant = min(latencies_us, key=lambda each: latencies_us[each])
    gain_us = usual_us - latencies_us[variant]
    least_us = LEAST_GAIN_US[device.partition(":")[0]]
    return variant if gain_us > max(least_us, LEAST_GAIN * usual_us) else usual


class _Latencies:
    """Latencies of the kernels of one static graph, from the store or measured."""

    def __init__(
        self, program: ProgramKey, device: ServingDevice, store: Store, retry: RetryWhileRestarting
    ) -> None:
        self._retry = retry
        self._program = program
        self._device = device
        self._store = store
        self._known_us: dict[str, float] = {}
        self.measured: set[str] = set()
        self.disturbed: set[str] = set()  # by their latest measurement

    async def remember(self, found: Sequence[UnitKernels]) -> None:
        """Look up the latencies that were measured before."""
        names = [self._name(kernels, variant) for kernels in found for variant in kernels.variants]
        self._known_us = await self._store.call(
            self._store.find_latencies, self._device.device_key, names
        )

    async def fastest(self, kernels: UnitKernels) -> str:
        """Name of the variant to run; an unusual one must be measured twice as faster."""
        best_us = inf
        fresh = []
        for variant in kernels.variants:
            if self._name(kernels, variant) not in self._known_us:
                await self._measure(kernels, variant, HOPELESS * best_us)
                fresh.append(variant)
            best_us = min(best_us, self._known_us[self._name(kernels, variant)])
        usual, chosen = kernels.variants[0], self._chosen(kernels)
        if fresh and chosen != usual:
            for variant in (usual, chosen):
                await self._measure(kernels, variant, inf)
        return self._chosen(kernels)

    def _chosen(self, kernels: UnitKernels) -> str:
        if any(self._name(kernels, variant) in self.disturbed for variant in kernels.variants):
            return kernels.variants[0]
        latencies_us = {v: self._known_us[self._name(kernels, v)] for v in kernels.variants}
        return fastest(latencies_us, self._device.name)

    async def _measure(self, kernels: UnitKernels, variant: str, hopeless_us: float) -> None:
        """Measure and store; the best of several measurements counts."""
        name, unit = self._name(kernels, variant), kernels.units[0]
        measure = partial(self._device.bench.measure_kernel, self._program)
        timing = await self._retry(partial(measure, unit, variant, hopeless_us))
        self.measured.add(name)
        latency_us = min(timing.latency_us, self._known_us.get(name, inf))
        self._known_us[name] = latency_us
        if timing.is_disturbed:
            self.disturbed.add(name)
            return
        self.disturbed.discard(name)
        best = replace(timing, latency_us=latency_us)
        await self._store.call(self._store.put_latency, self._device.device_key, name, best)

    def _name(self, kernels: UnitKernels, variant: str) -> str:
        return in_store(f"{kernels.signature}:{variant}", self._program.precision)
