"""Runs of a static graph operator by operator, in which each operator's values are looked at."""

from collections.abc import Callable, Generator

from braid.core.graph import Operator, OpGraph
from braid.engine.ops.kinds import call
from braid.engine.passes.body import Weights
from braid.engine.program.kernel import Value

Visit = Callable[[Operator, Weights], None]
"""Takes an operator that was run, and the values that exist then: its operands and results too."""


def exact_run(
    graph: OpGraph, values: dict[str, Value], visit: Visit, *, keep_all: bool = False
) -> Generator[None, None, None]:
    """Run on plain operators; ``values`` has constants and inputs, then the outputs, too."""
    last = {name: i for i, operator in enumerate(graph.operators) for name in operator.inputs}
    outputs = set(graph.outputs.values())
    for index, operator in enumerate(graph.operators):
        operands = [values[name] if name else None for name in operator.inputs]
        values.update(zip(operator.outputs, call(operator, operands), strict=False))
        visit(operator, values)
        for name in operator.inputs:
            if last[name] == index and name not in outputs and not keep_all:
                values.pop(name, None)
        yield
