"""The CUDA stage timer on a device whose clock is simulated: every latency is known."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from braid.core.measurement import StageLatency
from braid.engine.cuda.stage_timer import CudaStageTimer
from braid.engine.device import AskedStage
from braid.engine.program.kernel import Run
from braid.engine.program.program import Program
from braid.engine.runtime.yielding import no_pause
from braid.engine.timing.samples import TimerOptions
from tests.engine.cuda.graphs import bound, random_graph
from tests.engine.cuda.recording import CudaError, RecordingDriver
from tests.engine.cuda.test_release import chainable
from tests.engine.timing.running import finish

PACE_SIZE = 4

#   x ──> 0 (20 us) ──> 2 (5 us)      0 and 1 are independent
#   └───> 1 (30 us)
UNITS = chainable("xx", "xx", "00", "12")
US = [20.0, 30.0, 5.0, 1.0]


def device(program: Program = UNITS, scale: float = 1.0) -> RecordingDriver:
    driver = RecordingDriver()
    costs = {program.units[i].kernel.run: US[i] * scale for i in range(len(US))}
    driver.duration_us = lambda run: 200.0 if run is torch.mm else costs.get(run, 1.0)
    return driver


def timer_on(driver: RecordingDriver) -> CudaStageTimer:
    return CudaStageTimer(driver, 1 << 20, TimerOptions(), PACE_SIZE)


def measure(timer: CudaStageTimer, *groups: list[int]) -> tuple[StageLatency, int]:
    inputs = {"x": np.zeros((6, 6), np.float32)}
    return finish(timer.measure(UNITS, lambda: inputs, AskedStage(groups), no_pause))


@pytest.mark.parametrize(
    ("groups", "expected_us"),
    [([[0], [1]], 30), ([[0, 2], [1]], 30), ([[1, 0]], 50), ([[0, 2]], 25), ([[2]], 5)],
)
def test_a_stage_takes_what_its_longest_group_takes(
    groups: list[list[int]], expected_us: float
) -> None:
    timing, yields = measure(timer_on(device()), *groups)

    assert timing.latency_us == pytest.approx(expected_us), "what a replay costs is left out"
    assert yields >= 3, "inference must get a turn after each sample"


def test_short_stages_are_repeated_until_events_can_tell() -> None:
    driver = device(scale=0.1)

    timing, _ = measure(timer_on(driver), [2])

    assert timing.latency_us == pytest.approx(0.5)
    launches = [sum(o.kind == "launch" for o in c.operations) for c in driver.captures]
    assert launches[-2] * 0.5 >= 20
    assert launches[-1] == 2 * launches[-2]


def test_what_is_hopeless_is_measured_once() -> None:
    timer, inputs = timer_on(device()), {"x": np.zeros((6, 6), np.float32)}

    def repeats(hopeless_us: float) -> int:
        asked = AskedStage([[1]], hopeless_us=hopeless_us)
        return finish(timer.measure(UNITS, lambda: inputs, asked, no_pause))[0].repeats

    assert repeats(29.0) == 1
    assert repeats(31.0) > 1


def once_slower(first: int, last: int) -> Callable[[], float]:
    """Replays from one number to another take a tenth longer, as when the clocks fall."""
    replays = iter(range(1 << 30))
    return lambda: 1.1 if first <= next(replays) < last else 1.0


def test_samples_are_put_aside_while_the_clocks_are_down() -> None:
    driver = device()
    timer = timer_on(driver)
    measure(timer, [2])  # learns what is usual
    driver.speed = once_slower(8, 20)  # three samples of four replays, after the warm-ups

    timing, _ = measure(timer, [0], [1])

    assert timing.latency_us == pytest.approx(30)
    assert timing.repeats >= 3


def test_thousands_of_stages_leave_nothing_behind() -> None:
    driver = device()
    timer = timer_on(driver)
    measure(timer, [0], [1])
    graphs, memory = len(driver.live_graphs), driver.memory()

    for _ in range(10):
        measure(timer, [0], [1])
        measure(timer, [0, 2], [1])

    assert len(driver.live_graphs) == graphs
    assert driver.memory().reserved <= memory.reserved + (8 << 10)
    timer.forget()
    assert not driver.live_graphs
    assert driver.memory().allocated == 0


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_measurement_given_up_destroys_its_graphs(steps: int) -> None:
    driver = device()
    timer = timer_on(driver)
    measure(timer, [0])
    kept = set(driver.live_graphs)
    inputs = {"x": np.zeros((6, 6), np.float32)}
    measurement = timer.measure(UNITS, lambda: inputs, AskedStage([[1]]), no_pause)
    for _ in range(steps):
        next(measurement)

    measurement.close()

    assert driver.live_graphs == kept


def test_what_cannot_be_captured_is_timed_on_eager_streams() -> None:
    driver, refusals = device(), list[Run]()
    refused = UNITS.units[2].kernel.run

    def refuse(device: RecordingDriver, run: Run) -> None:
        if device.capturing and run is refused:
            refusals.append(run)
            raise CudaError("operation not permitted when stream is capturing", 900)

    driver.before_launch = refuse

    timing, _ = measure(timer_on(driver), [0, 2], [1])

    assert timing.latency_us == pytest.approx(30)
    assert len(refusals) == 1, "it is tried once"


@pytest.mark.parametrize("seed", range(3))
def test_stages_of_random_graphs_read_the_values_of_their_producers(seed: int) -> None:
    program = bound(*random_graph(seed, 12))
    driver = RecordingDriver(seed)
    inputs = {"x": np.ones((6, 6), np.float32)}
    timer = timer_on(driver)

    for unit in range(12):
        timing, _ = finish(timer.measure(program, lambda: inputs, AskedStage([[unit]]), no_pause))
        assert timing.latency_us == pytest.approx(1.0)
