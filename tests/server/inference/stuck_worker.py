"""A device worker of two places, where some rows hang or crash the process that runs them.

A run that hangs looks for no stop, as a library's would.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from braid.engine.cpu.backend import CpuBackend, CpuPlace, divided
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import FinishedRun
from braid.engine.runtime.arrays import Arrays
from braid.engine.worker.process import assembly
from braid.engine.worker.process.main import main

HANGS, CRASHES = 1e6, 2e6
"""First elements of inputs that do so, on a place."""


@dataclass(frozen=True)
class StuckPlan:
    """A plan on a place."""

    plan: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plan, name)

    def begin(self, inputs: Arrays, outputs: Arrays | None = None) -> FinishedRun:
        first = next(iter(inputs.values())).flatten()[0].item()
        if first == CRASHES:
            os.kill(os.getpid(), signal.SIGKILL)
        while first == HANGS:
            time.sleep(60)
        return FinishedRun(self.plan.begin(inputs, outputs).finish())


class StuckBackend(CpuBackend):
    """A place as a device."""

    def prepare(self, *arguments: Any) -> Any:
        return StuckPlan(super().prepare(*arguments))


class StuckCpu(CpuBackend):
    """A CPU with such places."""

    def __init__(self, executor: CpuExecutor) -> None:
        super().__init__(executor)
        self._made = divided(executor, 2, StuckBackend)

    def places(self, count: int) -> Sequence[CpuPlace]:
        return self._made if count == 2 else ()


if __name__ == "__main__":
    assembly.cpu_backend = lambda options: StuckCpu(CpuExecutor(options.threads))
    main()
