"""The unit of a program that loses most of its numbers in a narrow precision, for users to read.

    FP32 values ──> unit in FP32 ─────> result ──┐
             └cast> unit, narrow ─────> result ──┴─> error that this unit adds by itself

Each unit gets the values of the FP32 program, so what earlier units lost is not counted against it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from braid.core.graph import Operator, OpGraph
from braid.core.precision import HALF
from braid.engine.ops.dtypes import arrays_of, tensor_of, tensors_of, torch_dtype
from braid.engine.ops.kinds import call
from braid.engine.passes.body import Weights
from braid.engine.program.kernel import Value
from braid.engine.program.program import Program
from braid.engine.runtime.arrays import Arrays
from braid.engine.timing.comparison import errors
from braid.engine.worker.measuring.exact_runs import exact_run

_CAST = "braid.cast"


@dataclass(frozen=True, slots=True)
class _Narrow:
    """A program on narrow data, as units that can run by themselves."""

    graph: OpGraph
    constants: Weights
    units: Mapping[str, Operator]  # by name, those that read narrow data
    sources: Mapping[str, str]  # what was cast, by the name of the result

    @staticmethod
    def of(program: Program) -> _Narrow:
        graph, narrow = program.graph, frozenset(HALF.values())
        casts = [unit for unit in graph.operators if unit.kind == _CAST]
        return _Narrow(
            graph,
            tensors_of(program.constants()),
            {
                unit.name: unit
                for unit in graph.operators
                if unit not in casts
                and any(graph.spec(name).dtype in narrow for name in unit.inputs if name)
            },
            {unit.outputs[0]: unit.inputs[0] for unit in casts},
        )

    def error(self, unit: Operator, exact: Weights) -> float:
        """Error of one unit on exact operands, relative to the largest element of its outputs."""

        def narrowed(name: str) -> Value | None:
            if not name or name in self.constants:
                return self.constants.get(name)
            operand = exact[self.sources.get(name, name)]
            return operand.to(torch_dtype(self.graph.spec(name).dtype))

        ours = dict(zip(unit.outputs, call(unit, list(map(narrowed, unit.inputs))), strict=False))
        return errors(arrays_of(ours), arrays_of({name: exact[name] for name in ours}))[1]


def most_lost(exact: Program, program: Program, inputs: Arrays) -> Generator[None, None, str]:
    """Text that names the unit with the largest error of its own; ``exact`` is in FP32."""
    graph, constants, narrow = exact.graph, tensors_of(exact.constants()), _Narrow.of(program)
    like = next(iter(constants.values()), None)  # on the device
    for name, array in inputs.items():
        tensor = tensor_of(array)
        constants[name] = tensor if like is None else tensor.to(like.device)
    worst, named = 0.0, ""

    def visit(operator: Operator, exact: Weights) -> None:
        nonlocal worst, named
        unit = narrow.units.get(operator.name)
        if unit is not None and (error := narrow.error(unit, exact)) > worst:
            kind = operator.kind.partition(".")[2]
            worst, named = error, f"{operator.name} ({kind}), {error:.2g} by itself"

    yield from exact_run(graph, constants, visit)
    return named
