"""The fuzzers themselves, briefly; ``make fuzz`` runs them for as long as one likes."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings

from braid.engine.cpu.executor import CpuExecutor
from campaigns.fuzz.campaign import CORPUS
from campaigns.fuzz.compare import disagreement
from campaigns.fuzz.forked import run_importer
from campaigns.fuzz.graphs import models
from campaigns.fuzz.makers import MAKERS
from campaigns.fuzz.mutations import mutated

FILES = sorted(CORPUS.glob("*.*"))
QUICK = ("drawn03.onnx", "external.zip", "shapes.pt2")


@pytest.fixture(scope="module")
def executor() -> CpuExecutor:
    return CpuExecutor(threads=1)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(model=models())
def test_random_graphs_agree_with_onnxruntime(executor: CpuExecutor, model: Any) -> None:
    assert disagreement(model, executor) == ""


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
def test_every_maker_draws_nodes(maker: str) -> None:
    drawn: list[str] = []

    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    @given(models(makers={maker: MAKERS[maker], "Abs": MAKERS["Abs"]}))
    def draw(model: onnx.ModelProto) -> None:
        drawn.extend(node.op_type for node in model.graph.node)

    draw()
    assert set(drawn) - {"Abs"} or maker == "Abs"


def files() -> list[Any]:
    return [
        pytest.param(path, id=path.name, marks=[] if path.name in QUICK else [pytest.mark.slow])
        for path in FILES
    ]


@pytest.mark.parametrize("path", files())
def test_a_file_of_the_corpus_is_imported(path: Path) -> None:
    outcome = run_importer(path.read_bytes())

    assert outcome.kind == "imported", outcome


@pytest.mark.parametrize("path", files())
def test_damaged_files_are_refused_or_right(path: Path) -> None:
    for seed in range(4 if path.name in QUICK else 12):
        outcome = run_importer(mutated(path.read_bytes(), seed))
        assert not outcome.is_finding, (seed, outcome)


def test_the_same_seed_makes_the_same_damage() -> None:
    data = FILES[0].read_bytes()

    assert mutated(data, 7) == mutated(data, 7)
    assert any(mutated(data, seed) != data for seed in range(5))
