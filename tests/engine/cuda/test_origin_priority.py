"""Priority of the origin stream, on a device whose clock is simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from braid.core.plan import Launch, StreamPlan, sequential_plan
from braid.engine.cuda.driver.interface import Graph, Stream
from braid.engine.cuda.executor import CudaExecutor
from braid.engine.cuda.graphs.origin_priority import prepare_fastest
from braid.engine.onednn.library import Run
from tests.engine.cuda.recording import RecordingDriver
from tests.engine.cuda.test_release import chainable

PROGRAM = chainable("xx", "xx", "01")
PLAN = StreamPlan((Launch(0, 0), Launch(1, 1), Launch(2, 0, (1,))), 2)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Favouring(RecordingDriver):
    """Replays of graphs captured on an urgent origin take longer or shorter by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def replay(self, graph: Graph, stream: Stream) -> None:
        self.speed = lambda: self.factor if graph.handle.origin.urgent else 1.0
        super().replay(graph, stream)


@pytest.mark.parametrize(("factor", "urgent"), [(0.9, True), (0.995, False), (1.1, False)])
def test_an_urgent_origin_is_kept_only_if_clearly_faster(factor: float, urgent: bool) -> None:
    driver = Favouring(factor)
    executor = CudaExecutor(driver)
    graphs = len(driver.live_graphs)

    prepared = prepare_fastest(executor, PROGRAM, PLAN)

    assert prepared.streams[0].urgent is urgent
    assert len(driver.live_graphs) == graphs + 1, "the others are freed"


def test_one_stream_has_nothing_to_contend_for() -> None:
    driver = Favouring(0.5)

    prepared = prepare_fastest(CudaExecutor(driver), PROGRAM, sequential_plan(3))

    assert not prepared.streams[0].urgent


def test_a_variant_that_cannot_be_captured_is_left_out() -> None:
    driver = Favouring(0.5)

    def refuse(device: RecordingDriver, run: Run) -> None:
        if device.capturing and device.capturing.origin.urgent:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    driver.before_launch = refuse
    executor = CudaExecutor(driver)

    prepared = prepare_fastest(executor, PROGRAM, PLAN)

    assert not prepared.streams[0].urgent
    assert not prepared.eager_because
