"""Random networks, cut at random into parts in engines, equal the uncut model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from braid.core.plan import verify_plan
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.runtime.yielding import no_pause
from tests.engine.parts.drawn import Drawn
from tests.models.random_graphs import random_model

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend(CpuExecutor(threads=2))
    yield backend
    backend.close()


def parts_that_ran(seeds: range, folder: Path, backend: CpuBackend) -> tuple[int, list[str]]:
    """Run random plans of random models; returns how many parts ran, and what was refused."""
    parts, refused = 0, list[str]()
    for seed in seeds:
        drawn = Drawn(random_model(seed), folder, backend, rows=1 + seed % 3)
        plan, opened, reasons = drawn.random_plan(seed, threads=(1, 2))
        verify_plan(plan, drawn.graph.predecessors())
        ready = backend.prepare(drawn.program, plan, no_pause, opened)
        expected = drawn.expected()
        for _ in range(2):  # again on memory that was used before
            outputs = ready.run(drawn.inputs)
            for name, wanted in expected.items():
                error = (outputs[name] - wanted).abs().max() / wanted.abs().max().clamp(1e-3)
                assert float(error) < TOLERANCE, (seed, name, plan.parts)
        parts, refused = parts + len(opened), refused + reasons
    return parts, refused


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_cut_networks_compute_what_the_uncut_ones_do(
    first: int, tmp_path: Path, backend: CpuBackend
) -> None:
    parts, refused = parts_that_ran(range(first, first + 50), tmp_path, backend)

    assert parts > 50
    assert {reason for reason in refused if "If" not in reason} == set()


@pytest.mark.slow
def test_thousands_of_cut_networks_compute_what_the_uncut_ones_do(
    tmp_path: Path, backend: CpuBackend
) -> None:
    parts, _ = parts_that_ran(range(200, 2200), tmp_path, backend)

    assert parts > 2000


@pytest.mark.parametrize("seed", range(300, 340))
def test_every_value_with_a_source_equals_that_tensor_of_the_file(
    seed: int, tmp_path: Path, backend: CpuBackend
) -> None:
    drawn = Drawn(random_model(seed), tmp_path, backend, rows=2)
    made = [value for unit in drawn.graph.operators for value in unit.outputs]
    watched = [value for value in made if value in drawn.parts.values]

    ours = drawn.values(watched)
    theirs = drawn.tensors_of_the_file({drawn.graph.sources[value][-1] for value in watched})

    assert len(watched) > len(made) / 2
    for value in watched:
        wanted = theirs[drawn.graph.sources[value][-1]]
        assert ours[value].shape == wanted.shape, value
        torch.testing.assert_close(ours[value], wanted, rtol=1e-3, atol=1e-4)
