"""Calibration on a device: ranges from samples, and the units that stay wide by measured error."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from braid.core.graph import OpGraph
from braid.core.program import ProgramKey
from braid.core.quantisation import Quantisation, quantisation_text
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.device_key import has_integer_kernels
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.link.messages import Calibrate
from braid.engine.passes.quantised.candidates import Candidates
from braid.engine.passes.specialise import interpreted
from braid.engine.program.kernel import PackedWeights
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.comparison import errors
from braid.engine.worker.measuring.calibration import (
    Observed,
    calibrated,
    least_error,
    percentile,
    whole,
)
from braid.engine.worker.measuring.sensitivity import Budget
from braid.engine.worker.models import LoadedModel, ModelTable
from tests.engine.passes.drawing import Drawing

WIDTH = 32
SPEC = TensorType("FP32", (1, WIDTH))
KEY = ProgramKey("model", (("x", SPEC),))

needs_instructions = pytest.mark.skipif(
    not has_integer_kernels(), reason="the CPU has no instructions for sums of 8-bit products"
)


def chain(*, cancelling: bool = False) -> tuple[OpGraph, dict[str, Tensor]]:
    """x -> a -> b -> y, linear layers; with ``cancelling``, b is a small rest of large sums."""
    torch.manual_seed(1)
    weights = {name: torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for name in ("wa", "wb", "wy", "wz")}
    draw = Drawing(x=(1, WIDTH))
    a = draw.op("aten.linear", "x", "wa")
    if cancelling:
        # (300 Z + B) a - 300 Z a: in 8 bits little is left of B a
        weights["wz"] = 300 * weights["wz"]
        weights["wb"] = weights["wb"] + weights["wz"]
        sums = draw.op("aten.linear", a, "wb"), draw.op("aten.linear", a, "wz")
        b = draw.op("aten.sub", *sums, alpha=1)
    else:
        del weights["wz"]
        b = draw.op("aten.linear", a, "wb")
    draw.weights |= weights
    return draw.static(y=draw.op("aten.linear", b, "wy"))


def samples(tmp_path: Path, count: int = 12, seed: int = 0) -> tuple[str, list[Tensor]]:
    rows = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
    path = tmp_path / f"samples{seed}.npz"
    np.savez(path, x=rows)
    return str(path), [torch.from_numpy(row[None]) for row in rows]


class Device:
    def __init__(self, graph: OpGraph, constants: dict[str, Tensor]) -> None:
        self.graph, self.constants = graph, constants
        self.backend = CpuBackend(CpuExecutor(1))
        self.models = ModelTable(self.backend)
        self.models._models["model"] = LoadedModel(Path(), graph, constants, PackedWeights())

    def calibrate(self, path: str, tolerance: float) -> tuple[Quantisation, list[float]]:
        """What calibration finds, and the progress that it tells."""
        told: list[float] = []
        steps = calibrated(self.backend, self.models, Calibrate(KEY, path, tolerance), no_pause)
        while True:
            try:
                told += [fraction for fraction in [next(steps)] if fraction is not None]
            except StopIteration as end:
                return end.value, told

    def error(self, how: Quantisation, rows: list[Tensor]) -> float:
        """Largest error of the quantised model on some inputs, beside the plain interpreter."""
        key = ProgramKey("model", KEY.inputs, precision="int8", quantisation=how.text)
        ready = self.models.ready(self.models.program(key), None)
        given = [{"x": row.numpy()} for row in rows]
        return max(
            errors(ready.run(x), interpreted(self.graph, self.constants, x))[1] for x in given
        )


@needs_instructions
def test_the_error_that_is_told_is_the_largest_over_all_samples(tmp_path: Path) -> None:
    path, rows = samples(tmp_path)
    device = Device(*chain())

    how, told = device.calibrate(path, 0.2)

    assert (how.wide, how.candidates, how.samples) == ((), 3, 12)
    assert how.error is not None
    assert 0 < how.error <= 0.2
    assert device.error(how, rows) == pytest.approx(how.error, rel=1e-6)
    assert told == sorted(told)
    assert all(0 <= fraction <= 1 for fraction in told)
    assert "3 of 3 units" in quantisation_text(how)
    device.backend.close()


@needs_instructions
def test_units_that_cost_most_stay_wide(tmp_path: Path) -> None:
    path, rows = samples(tmp_path)
    device = Device(*chain(cancelling=True))

    how, _ = device.calibrate(path, 0.2)

    assert set(how.wide) == {"linear1", "linear2"}
    assert device.error(how, rows) <= 0.2
    assert device.error(Quantisation(how.ranges), rows) > 0.5, "all on integers"
    assert "in FP32: " in quantisation_text(how)
    device.backend.close()


@needs_instructions
def test_a_bound_that_integers_cannot_keep_ends_with_half_of_the_units_wide(
    tmp_path: Path,
) -> None:
    path, _ = samples(tmp_path)
    device = Device(*chain())

    whole = device.calibrate(path, 1e-7)[0]
    assert whole.error is not None
    assert whole.wide == (), "no unit is worth trying"

    how, _ = device.calibrate(path, whole.error / 50)

    assert how.error is not None
    assert how.error > whole.error / 50, "so the comparison refuses it"
    assert len(how.wide) == 1
    device.backend.close()


@needs_instructions
def test_the_same_samples_give_the_same_ranges_and_few_samples_are_used_twice(
    tmp_path: Path,
) -> None:
    path, rows = samples(tmp_path, 3)
    device = Device(*chain())
    one, other = device.calibrate(path, 0.2)[0], device.calibrate(path, 0.2)[0]

    assert one == other
    assert Quantisation.parsed(one.text).text == one.text
    assert one.samples == len(rows)
    device.backend.close()


def test_ranges_by_each_method_of_numbers_with_an_outlier() -> None:
    x = np.linspace(-1, 1, 20_001, dtype=np.float32)
    x[7] = 40.0
    observed = Observed({"x"}, 1)
    observed.see("x", x)
    observed.see("unasked", x)

    assert observed.by(whole) == {"x": (-1.0, 40.0)}
    ((_, most),) = observed.by(percentile).values()
    assert 0.99 < most <= 40.0
    ((least, most),) = observed.by(least_error).values()
    assert -1 <= least < 0 < most <= 40

    observed.see("x", np.array([float("inf")]))
    assert observed.by(whole) == {}


def test_only_what_has_constant_weights_in_fp32_can_become_integers() -> None:
    graph, constants = chain()

    assert Candidates(graph, constants).weighted == {"linear0", "linear1", "linear2"}
    assert Candidates(graph, {}).weighted == frozenset()


def test_a_budget_ends_with_the_processor_time_of_all_threads() -> None:
    seconds = [5.0]
    budget = Budget(10, clock=lambda: seconds[0], threads=2)

    seconds[0] += 19
    assert budget.is_left
    assert budget.spent == pytest.approx(0.95)
    seconds[0] += 2
    assert not budget.is_left
    assert budget.spent == 1


def test_time_in_which_the_process_does_not_compute_costs_no_budget() -> None:
    budget = Budget(0.2, threads=1)

    time.sleep(0.3)

    assert budget.is_left
