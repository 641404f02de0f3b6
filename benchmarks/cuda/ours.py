"""Braid's plans of one network on a GPU, as a device worker runs them."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np
from torch import Tensor

from benchmarks.cuda.clock import delay_us, hold_up
from benchmarks.networks.network import Network
from benchmarks.networks.registry import inputs_of
from braid.core.plan import plan_from_json
from braid.core.program import ProgramKey, sorted_choices
from braid.engine.cuda.backend import CudaBackend, OnGpu
from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.device import Backend
from braid.engine.importer.host.report import read_report
from braid.engine.ops.dtypes import spec_of
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Arrays
from braid.engine.worker.models import ModelTable


@dataclass(slots=True)
class OurPlan:
    """A plan that is ready, and what it reads."""

    ready: OnGpu
    inputs: Arrays
    delay_us: float = 0.0
    hold_up: Callable[[float], None] = hold_up

    def warm_up(self) -> None:
        """Put the inputs into place, and learn how long a launch takes."""
        self.ready.run(self.inputs)
        driver, plan = self.ready.executor.driver, self.ready.plan
        graph = plan.graph
        if graph is None:
            self.delay_us = 10_000.0
            return
        origin = driver.stream(ORIGIN)
        self.delay_us = delay_us(lambda: driver.replay(graph, origin), driver.synchronise)

    def gpu_ms(self) -> float:
        """Milliseconds of a replay between two events, after a run that does not count."""

        def waiting() -> tuple[Tensor, ...]:
            self.hold_up(self.delay_us)
            return ()

        executor = self.ready.executor
        executor.driver.launch(executor.driver.stream(ORIGIN), waiting, [])
        return executor.device_us(self.ready.plan) / 1e3

    def total_ms(self) -> float:
        """Milliseconds of a whole run, as a request finds it."""
        began = perf_counter_ns()
        self.ready.run(self.inputs)
        return (perf_counter_ns() - began) / 1e6


def our_program(
    backend: Backend,
    network: Network,
    batch: int,
    artefact: Path,
    precision: str,
    choices: Mapping[str, str],
) -> Program:
    """A network bound to kernels: the usual ones, but for ``choices``."""
    digest = read_report(artefact).sha256
    table = ModelTable(backend)
    table.load(digest, artefact)
    specs = tuple((name, spec_of(tensor)) for name, tensor in inputs_of(network, batch).items())
    key = ProgramKey(digest, specs, precision=precision, choices=sorted_choices(choices))
    return table.program(key)


def prepared_plans(
    backend: Backend, program: Program, inputs: Mapping[str, Tensor], plans: Mapping[str, Path]
) -> tuple[dict[str, OurPlan], dict[str, object]]:
    """Every plan, ready, by name; and what was seen on the way."""
    prepared = {}
    arrays = _as_requests_bring_them(backend, inputs)
    for name, path in plans.items():
        ready = backend.prepare(program, plan_from_json(json.loads(path.read_text())))
        assert isinstance(ready, OnGpu)
        prepared[name] = OurPlan(ready, arrays)
        prepared[name].warm_up()
    return prepared, {name: _notes(plan.ready) for name, plan in prepared.items()}


def _as_requests_bring_them(backend: Backend, inputs: Mapping[str, Tensor]) -> Arrays:
    """Copies in page-locked memory."""
    assert isinstance(backend, CudaBackend)
    arena = mmap.mmap(-1, sum(_pages(tensor) for tensor in inputs.values()))
    backend.lock_pages(np.frombuffer(arena, np.uint8))
    lying, offset = {}, 0
    for name, tensor in inputs.items():
        given = tensor.numpy()
        lying[name] = np.ndarray(given.shape, given.dtype, arena, offset)
        lying[name][...] = given
        offset += _pages(tensor)
    return lying


def _pages(tensor: Tensor) -> int:
    return -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _notes(ready: OnGpu) -> dict[str, object]:
    plan = ready.plan
    return {
        "streams": len(plan.streams),
        "eager_because": plan.eager_because,
        "peak_bytes": plan.peak_bytes,
    }
