"""Chains of units in bands of rows against the plain interpreter."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.plan import StreamPlan, plan_from_json, plan_to_json, sequential_plan, verify_plan
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.candidates import bind_on_cpu
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.lanes import lay_out
from braid.engine.cpu.segments import find_runner
from braid.engine.onednn.library import find_onednn
from braid.engine.passes.specialise import interpret
from braid.engine.program.bands import is_piece, pieces_of
from braid.engine.program.kernel import PackedWeights
from braid.scheduler.teams import spans_to_measure
from tests.engine.cpu.executors import executor_of

pytestmark = pytest.mark.skipif(find_onednn() is None, reason="bands run on oneDNN")

THREADS = 3
Constants = dict[str, torch.Tensor]


executor = executor_of(threads=THREADS)


class Chain:
    """A graph that grows by one unit after the other, from an image of ``height`` rows."""

    def __init__(self, seed: int, height: int, width: int = 19) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.specs = {"x": TensorType("FP32", (1, 8, height, width))}
        self.operators: list[Operator] = []
        self.constants: Constants = {}
        self.latest = "x"

    def grow(
        self, kind: str, inputs: tuple[str, ...], shape: tuple[int, ...], **how: Literal
    ) -> str:
        name = f"v{len(self.operators)}"
        self.operators.append(Operator(name, kind, inputs, (name,), how))
        self.specs[name] = TensorType("FP32", shape)
        self.latest = name
        return name

    def convolve(
        self, source: str, groups: int = 1, residual: str = "", *, is_same: bool = False
    ) -> str:
        """A convolution with a drawn window; with ``is_same`` the image keeps its extents."""
        draw, channels, is_same = self.random, 8, is_same or bool(residual)
        kernel, stride = draw.choice((1, 3, 5)), 1 if is_same else draw.choice((1, 1, 2))
        dilation = draw.choice((1, 2))
        padding = (kernel - 1) * dilation // 2 if is_same else draw.randint(0, kernel - 1)
        weight, bias = f"w{len(self.operators)}", f"b{len(self.operators)}"
        incoming = int(self.specs[source].shape[1])
        shape = channels, incoming // groups, kernel, kernel
        self.constants[weight] = torch.randn(shape, generator=self.generator) * 0.2
        self.constants[bias] = torch.randn(channels, generator=self.generator)
        extents = [
            (int(extent) + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1
            for extent in self.specs[source].shape[2:]
        ]
        kind = "braid.convolution_add" if residual else "aten.convolution"
        inputs = source, weight, bias, *filter(None, [residual])
        return self.grow(
            kind, inputs, (1, channels, *extents),
            stride=[stride] * 2, padding=[padding] * 2, dilation=[dilation] * 2, groups=groups,
            transposed=False, output_padding=[0, 0], epilogue=[["aten.relu"]],
        )  # fmt: skip

    def extents(self, value: str) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(int(extent) for extent in self.specs[value].shape[1:])

    def pool(self, source: str, padded: int | None = None) -> str:
        channels, *extents = self.extents(source)
        padded = self.random.choice((0, 1)) if padded is None else padded
        shape = [(extent + 2 * padded - 3) // 2 + 1 for extent in extents]
        return self.grow(
            "braid.max_pool", (source,), (1, channels, *shape),
            kernel=[3, 3], stride=[2, 2], dilation=[1, 1], pads=[padded] * 4, ceil_mode=False,
        )  # fmt: skip

    def fire(self, source: str) -> str:
        squeezed = self.convolve(source)
        left, right = (self.convolve(squeezed, is_same=True) for _ in range(2))
        return self.grow("aten.cat", (left, right), (1, 16, *self.extents(left)[1:]), dim=1)

    def inverted(self, source: str) -> str:
        middle = self.convolve(source)
        if self.random.random() < 0.5:
            return self.convolve(self.convolve(middle, groups=8, is_same=True), residual=middle)
        return self.convolve(middle, residual=middle)

    def graph(self) -> OpGraph:
        graph = OpGraph(
            "chain",
            {"x": self.specs["x"]},
            {"y": self.latest},
            {name: TensorType("FP32", tuple(t.shape)) for name, t in self.constants.items()},
            tuple(self.operators),
            {name: spec for name, spec in self.specs.items() if name != "x"},
        )
        graph.verify()
        return graph


def drawn(seed: int) -> tuple[OpGraph, Constants]:
    chain = Chain(seed, height=random.Random(seed).choice((40, 61, 80)), width=60)
    value = "x"
    for _ in range(3):
        value = chain.random.choice((chain.convolve, chain.pool, chain.fire, chain.inverted))(value)
        if min(chain.extents(value)[1:]) < 14:
            break
    if len(chain.operators) < 2:
        value = chain.inverted(value)
    return chain.graph(), chain.constants


def outputs(
    executor: CpuExecutor, graph: OpGraph, constants: Constants, plan: StreamPlan
) -> torch.Tensor:
    program = bind_on_cpu(graph, constants, PackedWeights(), executor.threads)
    verify_plan(plan, graph.predecessors())
    x = torch.randn(spec_shape(graph), generator=torch.Generator().manual_seed(1))
    got = executor.run(program, LanePlan(lay_out(program, plan, executor.threads)), {"x": x})
    expected = interpret(graph, constants, {"x": x})
    torch.testing.assert_close(got["y"], expected["y"], rtol=1e-4, atol=1e-4)
    return got["y"]


def spec_shape(graph: OpGraph) -> tuple[int, ...]:
    return tuple(int(extent) for extent in graph.inputs["x"].shape)


@pytest.mark.parametrize("seed", range(25))
def test_bands_give_the_interpreter_s_numbers(executor: CpuExecutor, seed: int) -> None:
    graph, constants = drawn(seed)
    units = len(graph)
    plan = replace(sequential_plan(units), bands=(tuple(range(units)),))

    outputs(executor, graph, constants, plan)


@pytest.mark.parametrize("seed", range(5))
def test_bands_between_other_units_give_their_numbers(executor: CpuExecutor, seed: int) -> None:
    chain = Chain(seed, height=60, width=60)
    first = chain.convolve("x")
    before = len(chain.operators)
    last = chain.inverted(chain.fire(first))
    after = len(chain.operators)
    chain.convolve(last)
    graph = chain.graph()
    plan = replace(sequential_plan(len(graph)), bands=(tuple(range(before, after)),))

    outputs(executor, graph, chain.constants, plan)


def test_bands_without_the_part_in_c_give_the_same(
    executor: CpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, constants = drawn(0)
    plan = replace(sequential_plan(len(graph)), bands=(tuple(range(len(graph))),))
    expected = outputs(executor, graph, constants, plan)

    monkeypatch.setattr("braid.engine.cpu.executor.find_runner", lambda: None)

    torch.testing.assert_close(outputs(executor, graph, constants, plan), expected)


@pytest.mark.skipif(find_runner() is None, reason="the part in C was not built")
def test_a_chain_in_bands_is_one_launch_of_the_plan(executor: CpuExecutor) -> None:
    graph, constants = drawn(1)
    program = bind_on_cpu(graph, constants, PackedWeights(), THREADS)
    plan = replace(sequential_plan(len(graph)), bands=(tuple(range(len(graph))),))
    (segment,) = lay_out(program, plan, THREADS)

    run = executor.steps(
        program, segment, program.environment({"x": torch.randn(spec_shape(graph))})
    )

    assert run is not None
    assert len(run(None)) == 1


#   a ──> b ──> y        y reads a, too: the chain a, b alone would hide it
#    └──────────^
def test_what_is_no_chain_has_no_bands(executor: CpuExecutor) -> None:
    chain = Chain(0, height=60)
    first = chain.convolve("x")
    second = chain.convolve(first, residual=first)
    chain.convolve(second, residual=first)
    graph = chain.graph()
    plan = replace(sequential_plan(3), bands=((0, 1),))

    with pytest.raises(InvalidArtefact, match="no chain"):
        outputs(executor, graph, chain.constants, plan)


def test_an_image_with_few_rows_has_no_bands(executor: CpuExecutor) -> None:
    chain = Chain(3, height=2, width=30)
    chain.convolve(chain.grow("aten.cat", ("x", "x"), (1, 16, 2, 30), dim=1), residual="")
    graph, constants = chain.graph(), chain.constants
    if int(graph.spec("v1").shape[2]) >= THREADS:
        pytest.fail("the drawn window makes more rows")

    with pytest.raises(InvalidArtefact, match="rows has no 3 bands"):
        outputs(executor, graph, constants, replace(sequential_plan(2), bands=((0, 1),)))


#   64 rows: conv conv │ 32 or 31: pool conv conv │ 16 or 15: pool conv conv │ 8 or 7: pool
def test_pieces_are_images_of_one_height() -> None:
    chain = Chain(0, height=64, width=64)
    value = "x"
    for _ in range(3):
        value = chain.pool(chain.convolve(chain.convolve(value, is_same=True), is_same=True))

    assert pieces_of(chain.graph(), 2) == [range(2), range(2, 5), range(5, 8)]
    assert pieces_of(chain.graph(), 4) == [range(2), range(2, 5)]
    assert pieces_of(chain.graph(), 64) == []


def test_a_plan_with_bands_survives_json_and_others_say_nothing_of_them() -> None:
    plan = replace(sequential_plan(4), bands=((0, 1), (2, 3)))

    assert plan_from_json(plan_to_json(plan)) == plan
    assert "bands" not in plan_to_json(sequential_plan(4))
    with pytest.raises(InvalidArtefact):
        replace(sequential_plan(4), bands=((0, 2),))


#   x ──> a ──> pool ──> b ──> y        as in a U-Net: a leaves the two pieces at one
#         └───> pool ──────────^
def test_pieces_are_not_joined_over_a_value_that_is_read_later(executor: CpuExecutor) -> None:
    chain = Chain(0, height=64, width=64)
    first = chain.convolve("x", is_same=True)
    second = chain.convolve(chain.pool(first, 1), is_same=True)
    chain.convolve(second, residual=chain.pool(first, 1), is_same=True)
    graph = chain.graph()

    pieces = pieces_of(graph, 2)
    assert pieces[:2] == [range(1), range(1, 3)]
    sets = spans_to_measure(pieces, partial(is_piece, graph))
    assert sets
    for spans in sets:
        plan = replace(sequential_plan(len(graph)), bands=tuple(map(tuple, spans)))
        outputs(executor, graph, chain.constants, plan)
