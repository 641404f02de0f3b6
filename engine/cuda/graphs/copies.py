"""Copies of a stage in a row, in one graph, for the stage timer.

Each copy begins when the one before has ended, as stages of a plan do. Units that cannot be
captured are put on eager streams instead, which is also how they will run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.engine.cuda.driver.faults import CaptureFailed
from braid.engine.cuda.driver.interface import ORIGIN, Driver, Graph, Pool, Stream
from braid.engine.cuda.graphs.calls import stage_calls
from braid.engine.cuda.graphs.commands import CommandList, lower, order_calls
from braid.engine.cuda.graphs.issue import issue, launch_unit, warm_up
from braid.engine.cuda.graphs.prepare import capturing
from braid.engine.device import AskedStage
from braid.engine.program.program import Environment, Program
from braid.engine.timing.recorded_inputs import Activations


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Runs single units, to find the values that stages read."""

    driver: Driver

    def run_unit(self, program: Program, unit: int, env: Environment) -> None:
        launch_unit(program.units[unit], env, self.driver, self.driver.stream(ORIGIN))

    def made_up(self, value: Tensor) -> Callable[[], Tensor] | None:
        if not value.is_floating_point():
            return None
        shape, strides, dtype, device = value.shape, value.stride(), value.dtype, value.device
        return lambda: torch.empty_strided(shape, strides, dtype=dtype, device=device).uniform_(
            -1, 1
        )


@dataclass(frozen=True, slots=True)
class ReadyStage:
    """A stage whose kernels are warm on its streams."""

    driver: Driver
    commands: CommandList
    streams: tuple[Stream, ...]
    env: Environment
    makes: tuple[int, ...]  # slots

    def issue(self, copies: int) -> None:
        for _ in range(copies):
            issue(self.commands, self.env, self.driver, self.streams)
            for slot in self.makes:  # all streams are joined: the next copy may have the memory
                self.env[slot] = None


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a stage, captured or not."""

    stage: ReadyStage
    count: int
    graph: Graph | None

    def run(self) -> None:
        """Put all copies on the device, the origin stream leading."""
        driver = self.stage.driver
        if self.graph is None:
            self.stage.issue(self.count)
        else:
            driver.replay(self.graph, driver.stream(ORIGIN))

    def destroy(self) -> None:
        if self.graph is not None:
            self.stage.driver.destroy(self.graph)


def ready_stage(driver: Driver, activations: Activations, asked: AskedStage) -> ReadyStage:
    """Run a stage once, unit by unit, on the values that its producers gave."""
    calls = stage_calls(activations.program, asked.groups, asked.strategy)
    streams = tuple(driver.stream(i) for i in range(1 + max(call.stream for call in calls)))
    env = activations.environment(tuple(unit for group in asked.groups for unit in group))
    makes = tuple(slot for call in calls for slot in call.bound.outputs)
    warm_up(calls, env, driver, streams, frozenset())
    for slot in makes:
        env[slot] = None
    driver.synchronise()
    return ReadyStage(driver, lower(calls, order_calls(calls), {}), streams, env, makes)


def make_copies(stage: ReadyStage, count: int, pool: Pool, *, capture: bool = True) -> Copies:
    if not capture:
        return Copies(stage, count, None)
    try:
        with capturing(stage.driver, stage.streams, pool) as captured:
            stage.issue(count)
    except CaptureFailed:
        return Copies(stage, count, None)
    return Copies(stage, count, captured[0])
