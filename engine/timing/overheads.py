"""What a stage costs besides its units' own work, and graphs that measure only that.

one group of 1, of 5 units ──> price of a stage, of a further unit
two groups, side by side   ──> price of a further group: waking its threads, waiting for them
"""

from collections.abc import Sequence

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType

CHAIN = 5  # units of the longer group


def tiny_graph(groups: Sequence[int]) -> tuple[OpGraph, list[list[int]]]:
    """Graph of units that do next to nothing, and each group's units, ``groups[i]`` of them."""
    units, names = [], ["x"]
    for group, count in enumerate(groups):
        reads = "x"
        for place in range(count):
            name = f"{group}.{place}"
            units.append(Operator(name, "aten.relu", (reads,), (name,)))
            names.append(name)
            reads = name
    tiny = TensorType("FP32", (16,))
    graph = OpGraph(
        "tiny", {"x": tiny}, {"y": names[-1]}, {}, tuple(units), dict.fromkeys(names[1:], tiny)
    )
    numbers = iter(range(len(units)))
    return graph, [[next(numbers) for _ in range(count)] for count in groups]
