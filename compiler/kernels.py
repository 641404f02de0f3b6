"""Which kernel runs each unit: the fastest one measured, remembered by the unit's signature.

A choice outlives the model it was made for: it is found again by any model with such a unit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from msgspec import structs

from braid.compiler.device import Device, measure
from braid.compiler.results import Cache
from braid.compiler.retries import RetryWhileRestarting
from braid.compiler.stages import in_cache
from braid.core.graph import OpGraph
from braid.core.margins import KERNEL_GAIN, KERNEL_RATIO
from braid.core.program import ProgramKey, UnitKernels, sorted_choices
from braid.core.schedule import Stage
from braid.engine.link.messages import FindKernels, MeasureStage

LEAST_GAIN_US = {"cpu": 5.0, "cuda": 0.5}
"""Time that a kernel must save beside ``KERNEL_GAIN``: measured alone, a kernel does not show what
it costs its neighbours. On a GPU they are kernels of a few microseconds in a graph, and there are
no bursts to interrupt."""


@dataclass(frozen=True, slots=True)
class ChosenKernels:
    """Kernels of the units of a static graph that have several."""

    by_unit: Mapping[str, str]  # name of the unit -> variant
    program: ProgramKey  # on these kernels


async def choose_kernels(
    graph: OpGraph,
    program: ProgramKey,
    device: Device,
    cache: Cache,
    retry: RetryWhileRestarting,
) -> ChosenKernels:
    """Choose the fastest kernels of a program; measures what is not known yet."""
    latencies = _Latencies(program, device, cache, retry)
    units = (await retry(lambda: device.ask(FindKernels(program)))).kernels
    await latencies.remember(units)
    by_unit: dict[str, str] = {}
    choices: dict[str, str] = {}
    for kernels in units:
        variant = await latencies.fastest(kernels)
        by_unit |= {graph.operators[unit].name: variant for unit in kernels.units}
        if variant != kernels.variants[0]:
            choices[kernels.signature] = variant
    on_choices = replace(program, choices=sorted_choices(choices))
    return ChosenKernels(by_unit, on_choices)


def fastest(latencies_us: Mapping[str, float], device: str = "cpu") -> str:
    """Name of the variant to run on a device; the first of ``latencies_us`` is the usual one."""
    usual, usual_us = next(iter(latencies_us.items()))
    variant = min(latencies_us, key=lambda name: latencies_us[name])
    gain_us = usual_us - latencies_us[variant]
    least_us = LEAST_GAIN_US[device.partition(":")[0]]
    return variant if gain_us > max(least_us, KERNEL_GAIN * usual_us) else usual


class _Latencies:
    """Latencies of the kernels of one static graph, from the cache or measured."""

    def __init__(
        self, program: ProgramKey, device: Device, cache: Cache, retry: RetryWhileRestarting
    ) -> None:
        self._retry = retry
        self._program = program
        self._device = device
        self._cache = cache
        self._known_us: dict[str, float] = {}

    async def remember(self, units: Sequence[UnitKernels]) -> None:
        names = [self._name(kernels, variant) for kernels in units for variant in kernels.variants]
        self._known_us = dict(await self._cache.find_latencies(names))

    async def fastest(self, kernels: UnitKernels) -> str:
        """Name of the variant to run; an unusual one must be measured twice as faster."""
        best_us = inf
        fresh = []
        for variant in kernels.variants:
            if self._name(kernels, variant) not in self._known_us:
                await self._measure(kernels, variant, KERNEL_RATIO * best_us)
                fresh.append(variant)
            best_us = min(best_us, self._known_us[self._name(kernels, variant)])
        usual, chosen = kernels.variants[0], self._chosen(kernels)
        if fresh and chosen != usual:
            for variant in (usual, chosen):
                await self._measure(kernels, variant, inf)
        return self._chosen(kernels)

    def _chosen(self, kernels: UnitKernels) -> str:
        latencies_us = {v: self._known_us[self._name(kernels, v)] for v in kernels.variants}
        return fastest(latencies_us, self._device.name)

    async def _measure(self, kernels: UnitKernels, variant: str, hopeless_us: float) -> None:
        """Measure and keep; the best of several measurements counts."""
        name, stage = self._name(kernels, variant), Stage(((kernels.units[0],),))
        above_us = None if hopeless_us == inf else hopeless_us
        request = MeasureStage(self._program, stage, None, variant, above_us)
        timing = await self._retry(lambda: measure(self._device, request))
        latency_us = min(timing.latency_us, self._known_us.get(name, inf))
        self._known_us[name] = latency_us
        best = structs.replace(timing, latency_us=latency_us)
        await self._cache.keep_latencies({name: best})

    def _name(self, kernels: UnitKernels, variant: str) -> str:
        return in_cache(f"{kernels.signature}:{variant}", self._program.precision)
