"""Random graphs and plans for the CUDA engine: views, several outputs, merges that share memory.

Every value is 6 x 6, except the halves of a split, which a concatenation joins again.
"""

import random
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.plan import Launch, StreamPlan, verify_plan
from braid.core.tensor import TensorType
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.ops import kinds
from braid.engine.program.kernel import (
    REGISTRY,
    Kernel,
    PackedWeights,
)
from braid.engine.program.program import Binding, BoundUnit, Program

SQUARE = TensorType("FP32", (6, 6))
HALF = TensorType("FP32", (3, 6))


class RegistryKernels(CudaKernels):
    """The registry's kernels, where the recording device computes."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def variants(self, unit: Operator, *_: object) -> list[Kernel]:
        return [Kernel(REGISTRY, kinds.bound(unit))]


def random_graph(seed: int, units: int) -> tuple[OpGraph, dict[str, Tensor]]:
    """Products with weights, sums, transposes (views) and splits into halves (views)."""
    rng = random.Random(seed)
    torch_rng = torch.Generator().manual_seed(seed)
    squares, halves = ["x"], list[str]()
    operators, constants = list[Operator](), dict[str, Tensor]()
    reads: tuple[str, ...]
    for number in range(units):
        name = f"v{number}"
        kind = rng.choice(["product", "product", "sum", "transpose", "split", "join"])
        if kind == "product":
            constants[f"w{number}"] = torch.randn(6, 6, generator=torch_rng) / 3
            reads = (rng.choice(squares), f"w{number}")
            operators.append(Operator(name, "aten.matmul", reads, (name,)))
        elif kind == "transpose":
            reads = (rng.choice(squares),)
            operators.append(Operator(name, "aten.permute", reads, (name,), {"dims": [1, 0]}))
        elif kind == "split":
            outputs = f"{name}a", f"{name}b"
            reads = (rng.choice(squares),)
            operators.append(Operator(name, "braid.split", reads, outputs, {"parts": 2}))
            halves += outputs
            continue
        elif kind == "join" and halves:
            reads = (rng.choice(halves), rng.choice(halves))
            operators.append(Operator(name, "aten.cat", reads, (name,), {"dim": 0}))
        else:
            reads = (rng.choice(squares), rng.choice(squares))
            operators.append(Operator(name, "aten.add", reads, (name,)))
        squares.append(name)
    specs = dict.fromkeys(squares[1:], SQUARE) | dict.fromkeys(halves, HALF)
    outputs_of = {"last": squares[-1], "middle": squares[len(squares) // 2]}
    weights = dict.fromkeys(constants, SQUARE)
    graph = OpGraph("random", {"x": SQUARE}, outputs_of, weights, tuple(operators), specs)
    graph.verify()
    return graph, constants


def bound(graph: OpGraph, constants: dict[str, Tensor]) -> Program:
    """The graph over the registry's operators, whose answers may be views."""
    names = [*graph.inputs, *graph.constants, *graph.specs]
    slots = {name: slot for slot, name in enumerate(names)}
    template: list[Tensor | None] = [constants.get(name) for name in names]
    units = tuple(
        BoundUnit(
            Kernel("test", partial(_run, operator)),
            tuple(slots[name] for name in operator.inputs),
            tuple(slots[name] for name in operator.outputs),
            work_us=1.0 + index % 3,
        )
        for index, operator in enumerate(graph.operators)
    )
    binding = Binding(RegistryKernels(), 1, PackedWeights())
    return Program(graph, units, slots, template, False, binding)


def _run(operator: Operator, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
    results = kinds.call(operator, inputs)
    return results[0] if len(results) == 1 else results


def merge(program: Program, units: Sequence[int]) -> None:
    """Let products of one value run as one kernel; their results are parts of one tensor."""
    parts = [program.units[unit] for unit in units]
    constants = program.constants()
    weights = [constants[program.graph.operators[unit].inputs[1]] for unit in units]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        whole = x @ torch.cat(weights, 1)
        return tuple(whole[:, start : start + 6] for start in range(0, whole.shape[1], 6))

    outputs = tuple(slot for part in parts for slot in part.outputs)
    kernel = Kernel("test", run)
    program.merged[tuple(units)] = BoundUnit(kernel, parts[0].inputs[:1], outputs, 2.0)


def random_plan(program: Program, seed: int, *, barriers: bool, streams: int = 5) -> StreamPlan:
    """Random order and streams; each unit waits where nothing else makes it."""
    rng = random.Random(seed)
    needed = program.graph.predecessors()
    order, merges = _random_order(program, rng)
    together = {unit: units for units in merges for unit in units}
    stream = [rng.randrange(streams) for _ in needed]
    for units in merges:
        for unit in units:
            stream[unit] = stream[units[0]]
    inner = {unit for units in merges for unit in units[1:]}
    cuts = [
        at
        for at in range(1, len(order))
        if barriers and rng.random() < 0.25 and order[at] not in inner
    ]
    launches = []
    position = {unit: at for at, unit in enumerate(order)}
    for at, unit in enumerate(order):
        start = max((cut for cut in cuts if cut <= at), default=0)
        extra = [u for u in order[start:at] if rng.random() < 0.1]
        waits = tuple(
            sorted(
                n
                for n in {*needed[unit], *extra}
                if stream[n] != stream[unit] and position[n] >= start
                and n not in together.get(unit, ())
            )
        )  # fmt: skip
        launches.append(Launch(unit, stream[unit], waits))
    plan = StreamPlan(tuple(launches), streams, tuple(cuts), tuple(merges))
    verify_plan(plan, needed)
    return plan


def _random_order(program: Program, rng: random.Random) -> tuple[list[int], list[tuple[int, ...]]]:
    """A random topological order in which two products of one value may stand in a row, merged."""
    needed = program.graph.predecessors()
    operators = program.graph.operators
    order, merges, done = list[int](), list[tuple[int, ...]](), set[int]()
    while len(order) < len(needed):
        ready = [u for u in range(len(needed)) if u not in done and done.issuperset(needed[u])]
        unit = rng.choice(ready)
        twins = [
            other
            for other in ready
            if other != unit
            and operators[other].kind == operators[unit].kind == "aten.matmul"
            and operators[other].inputs[0] == operators[unit].inputs[0]
        ]
        chosen = (unit, twins[0]) if twins else (unit,)
        if twins:
            merges.append(chosen)
            merge(program, chosen)
        order += chosen
        done.update(chosen)
    return order, merges
