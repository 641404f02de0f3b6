"""Recurrent layers outside the interpreter against torch in FP64."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, OpGraph
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import CPU_KERNELS
from braid.engine.cpu.native.find import find_native
from braid.engine.cpu.segments import NativeSegment
from braid.engine.ops.dtypes import arrays_of, spec_of
from braid.engine.ops.kinds import call
from braid.engine.passes.body import Weights
from braid.engine.program.kernel import PackedWeights
from tests.engine.cpu.executors import on_kernels, on_tensors
from tests.engine.cpu.executors import vector_width as vector_width
from tests.engine.cpu.test_kernels import all_kernels, unit_graph
from tests.engine.cpu.test_native_units import ran

NATIVE = find_native()

pytestmark = [
    pytest.mark.skipif(NATIVE is None, reason="the part in C was not built"),
    pytest.mark.usefixtures("vector_width"),
]


def drawn(
    layer: str,
    direction: str,
    sizes: tuple[int, int, int, int],
    *,
    batch_first: bool = False,
    biases: bool = True,
    start: bool = False,
) -> tuple[OpGraph, Weights, dict[str, Tensor | None]]:
    """A graph of one layer over (steps, sequences, inputs, hidden), its weights and operands."""
    time, rows, width, hidden = sizes
    directions, gates = 1 + (direction == "bidirectional"), {"lstm": 4, "gru": 3}.get(layer, 1)
    shape = (directions, rows, hidden)
    states = (rows, directions, hidden) if batch_first else shape
    operands: dict[str, Tensor | None] = {
        "x": torch.randn(rows, time, width) if batch_first else torch.randn(time, rows, width),
        "lengths": None,
        "h": torch.randn(states) if start else None,
        "c": torch.randn(states) if start and layer == "lstm" else None,
    }
    weights: dict[str, Tensor] = {}
    for d in range(directions):
        weights[f"input{d}"] = torch.randn(gates * hidden, width) / 3
        weights[f"state{d}"] = torch.randn(gates * hidden, hidden) / hidden**0.5
        if biases:
            weights[f"b{d}"], weights[f"c{d}"] = torch.randn(2, gates * hidden)
    results = ("y", "end", "cell") if layer == "lstm" else ("y", "end")
    attributes: dict[str, Literal] = {"layer": layer, "hidden": hidden, "direction": direction}
    attributes["batch_first"] = batch_first
    given = {**operands, **weights}
    return *unit_graph("braid.recurrent", given, [*weights], attributes, results), given


@pytest.mark.parametrize("start", [False, True], ids=["", "start"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["", "batch first"])
@pytest.mark.parametrize(
    "sizes", [(5, 1, 3, 4), (7, 3, 8, 16), (1, 2, 5, 33), (9, 14, 6, 70)], ids=str
)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_layers(
    layer: str, direction: str, sizes: tuple[int, int, int, int], batch_first: bool, start: bool
) -> None:
    for biases in (False, True):
        how = {"batch_first": batch_first, "biases": biases, "start": start}
        graph, weights, operands = drawn(layer, direction, sizes, **how)
        (unit,) = graph.operators
        wanted = call(unit, [t if t is None else t.double() for t in operands.values()])
        kernel = all_kernels(graph, weights)["native"]
        for threads in (1, 2, 3):
            got = on_tensors(kernel, threads)(*operands.values())
            for result, exact in zip(got, wanted, strict=True):
                torch.testing.assert_close(result.double(), exact, rtol=0, atol=5e-6)


def test_gates_that_are_far_from_zero_are_shut_or_open() -> None:
    for layer in ("lstm", "gru", "rnn_tanh"):
        graph, weights, operands = drawn(layer, "forward", (4, 2, 3, 5))
        operands["x"] = torch.full((4, 2, 3), 1e6)
        (unit,) = graph.operators
        wanted = call(unit, [t if t is None else t.double() for t in operands.values()])
        got = on_tensors(all_kernels(graph, weights)["native"], 1)(*operands.values())
        for result, exact in zip(got, wanted, strict=True):
            torch.testing.assert_close(result.double(), exact, rtol=0, atol=5e-6)


def test_a_layer_needs_no_interpreter() -> None:
    graph, weights, operands = drawn("lstm", "bidirectional", (6, 1, 3, 8))
    executor = CpuExecutor(threads=2)
    program = on_kernels(graph, weights)
    x = operands["x"]
    assert x is not None
    plan, got = ran(program, executor, {"x": x})
    executor.close()

    assert plan.compiled is not None
    assert [type(part) for part in plan.compiled.parts] == [NativeSegment]
    (unit,) = graph.operators
    for result, wanted in zip(got.values(), call(unit, [*operands.values()]), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_layers_that_share_the_weights_of_inputs_have_states_of_their_own() -> None:
    graph, weights, operands = drawn("lstm", "forward", (6, 1, 3, 8))
    (unit,) = graph.operators
    x, other = operands["x"], {**weights, "state0": -weights["state0"]}
    names = tuple("other" if name == "state0" else name for name in unit.inputs)
    second = replace(unit, name="v", inputs=names, outputs=("y2", "end2", "cell2"))
    packed = PackedWeights()
    for operator, content in ((unit, weights), (second, {**weights, "other": other["state0"]})):
        specs = {name: spec_of(tensor) for name, tensor in content.items()}
        made = {o: graph.spec(i) for o, i in zip(operator.outputs, unit.outputs, strict=True)}
        both = replace(graph, constants=specs, operators=(operator,), specs={**graph.specs, **made})
        kernel = next(iter(CPU_KERNELS.variants(operator, both, arrays_of(content), packed)))
        given = [x if n == "x" else content.get(n) for n in operator.inputs]
        results = on_tensors(kernel, 1)(*given)
        for result, wanted in zip(results, call(operator, given), strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
