"""Inputs for stages that are measured on their own: the values their producers really give.

One sequential run keeps every intermediate value, up to a byte budget; beyond it only layout is
kept and a value of the same strides is made up when a stage needs it. Integer tensors are always
kept, since their content may be indices.
"""

from collections.abc import Callable
from typing import Protocol

from braid.engine.program.kernel import Value, Values
from braid.engine.program.program import Environment, Program
from braid.engine.runtime.yielding import YieldToRequests, no_pause


class UnitRunner(Protocol):
    """The part of an executor that recording needs."""

    def run_unit(self, program: Program, unit: int, env: Environment) -> None:
        """Run one unit by itself on the slots of ``env``."""

    def made_up(self, value: Value) -> Callable[[], Value] | None:
        """Function that makes floats between -1 and 1 as ``value`` lies; None: it holds none."""


class Activations:
    """Every value of one program after one sequential run."""

    def __init__(
        self,
        program: Program,
        inputs: Values,
        executor: UnitRunner,
        budget_bytes: int,
        pause: YieldToRequests = no_pause,
    ) -> None:
        self.program = program
        self._executor = executor
        self._made_up: dict[int, Callable[[], Value]] = {}  # by slot
        self._env = program.environment(inputs)
        spent = 0
        for unit in range(len(program.units)):
            executor.run_unit(program, unit, self._env)
            pause()
            spent += self._output_bytes(unit)
            if spent > budget_bytes:
                self._forget_readers_done(unit)

    def _output_bytes(self, unit: int) -> int:
        values = [self._env[slot] for slot in self.program.units[unit].outputs]
        return sum(int(value.nbytes) for value in values if value is not None)

    def _forget_readers_done(self, unit: int) -> None:
        """Replace what no later unit reads by its layout."""
        later = {slot for u in self.program.units[unit + 1 :] for slot in u.inputs}
        for slot in {*self.program.units[unit].inputs, *self.program.units[unit].outputs} - later:
            value = self._env[slot]
            produced = self.program.template[slot] is None
            if value is not None and produced and (make := self._executor.made_up(value)):
                self._made_up[slot] = make
                self._env[slot] = None

    def serve(self, program: Program) -> bool:
        """Whether ``program`` has the same values; if so, it is measured from now on."""
        if program.template is not self.program.template:
            return False
        self.program = program
        return True

    def environment(self, units: tuple[int, ...]) -> Environment:
        """Slots for one run, filled with all that ``units`` read."""
        env = self._env.copy()
        for unit in units:
            for slot in self.program.units[unit].inputs:
                if env[slot] is None and slot in self._made_up:
                    env[slot] = self._made_up[slot]()
        return env
