"""Attention, softmax, norms and views outside the interpreter against FP64."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, OpGraph
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.native_units import VARIANT, parts_of
from braid.engine.cpu.lane_plan import LanePlan
from braid.engine.cpu.native.find import find_native
from braid.engine.cpu.segments import NativeSegment
from braid.engine.passes.attention import fuse_attention
from braid.engine.passes.body import Weights
from braid.engine.passes.rotations import fuse_rotations
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.program.program import Program
from tests.engine.cpu.executors import executor_of, in_lanes, on_kernels, on_tensors, run
from tests.engine.cpu.executors import vector_width as vector_width
from tests.engine.cpu.test_kernels import all_kernels, unit_graph
from tests.engine.cpu.test_lanes import random_plan
from tests.engine.passes import test_rotations as rotations
from tests.engine.passes.drawing import Drawing
from tests.engine.passes.test_attention import STYLES, Style, drawn

NATIVE = find_native()

pytestmark = [
    pytest.mark.skipif(NATIVE is None, reason="the part in C was not built"),
    pytest.mark.usefixtures("vector_width"),
]

SILU: list[Literal] = [["aten.silu"]]
RELU: list[Literal] = [["aten.relu"]]


executor = executor_of(threads=2)


def wide(tensors: Weights) -> dict[str, Tensor]:
    return {n: t.double() if t.is_floating_point() else t for n, t in tensors.items()}


def ran(program: Program, executor: CpuExecutor, inputs: Weights) -> tuple[LanePlan, Weights]:
    plan = in_lanes(program, executor.threads)
    for _ in range(2):
        outputs = run(executor, program, plan, inputs)
    return plan, outputs


def check(graph: OpGraph, constants: Weights, executor: CpuExecutor, tolerance: float) -> LanePlan:
    """The graph's numbers on kernels are those of the interpreter in FP64; returns the plan."""
    program = on_kernels(graph, constants, executor.threads)
    inputs = {name: torch.randn([int(e) for e in s.shape]) for name, s in graph.inputs.items()}
    plan, got = ran(program, executor, inputs)
    wanted = interpret(graph, wide(constants), wide(inputs))
    for name, tensor in wanted.items():
        limit = tolerance * max(1.0, float(tensor.nan_to_num().abs().max()))
        torch.testing.assert_close(got[name].double(), tensor, rtol=0, atol=limit, equal_nan=True)
    return plan


SHAPES = [
    (1, 1, 1, 1),
    (2, 5, 3, 4),
    (1, 16, 2, 64),
    (3, 33, 1, 17),
    (2, 70, 4, 33),
    (1, 197, 3, 64),
]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_of_every_style_and_size(
    style: Style, shape: tuple[int, int, int, int], executor: CpuExecutor
) -> None:
    graph, constants = drawn(style, *shape)
    fused = fuse_attention(graph, constants)
    program = on_kernels(fused, constants, executor.threads)

    check(fused, constants, executor, 2e-6)

    units = zip(fused.operators, program.units, strict=True)
    assert [unit.kernel.variant for op, unit in units if "attention" in op.kind] == [VARIANT]


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_attention_of_random_sizes(count: int, executor: CpuExecutor) -> None:
    chance = random.Random(3)
    for _ in range(count):
        shape = *(chance.randint(1, most) for most in (3, 90, 5)), chance.randint(1, 70)
        graph, constants = drawn(chance.choice(STYLES), *shape)
        check(fuse_attention(graph, constants), constants, executor, 2e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads_attends_to_the_same(threads: int) -> None:
    """Heads are divided where there are fewer than threads."""
    graph, constants = drawn(STYLES[0], 1, 40, 1, 16)
    fused = fuse_attention(graph, constants)
    program = on_kernels(fused, constants, threads)
    unit = next(
        u for u, op in zip(program.units, fused.operators, strict=True) if len(op.inputs) > 2
    )
    x = torch.randn(1, 40, 48)

    got = on_tensors(unit.kernel, threads)(x, x, x)

    q, k, v = (part.double() for part in x.split(16, -1))
    wanted = torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v
    result = got if isinstance(got, Tensor) else got[0]
    torch.testing.assert_close(result.double(), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("angles", [1, 2])
@pytest.mark.parametrize("shape", [(2, 5, 3, 8), (2, 1, 1, 2), (2, 70, 2, 66), (2, 9, 4, 64)])
def test_rotations_of_every_size(
    shape: tuple[int, int, int, int], angles: int, executor: CpuExecutor
) -> None:
    draw, heads = rotations.drawn(shape, angles=angles)
    graph, constants = draw.static(rotations.turned(draw, heads, shape[3]))
    fused = fuse_rotations(graph, constants)
    program = on_kernels(fused, constants, executor.threads)

    check(fused, constants, executor, 1e-6)

    assert [unit.kernel.variant for unit in program.units] == [VARIANT]


@pytest.mark.parametrize("kept", [1, 48])
def test_rotations_of_a_part_of_each_head(kept: int, executor: CpuExecutor) -> None:
    graph, constants = rotations.in_part((2, 9, 3, 22), kept)
    fused = fuse_rotations(graph, constants)

    check(fused, constants, executor, 1e-6)

    assert len(fused.operators) == 1


def test_a_query_without_keys_is_nan_as_in_torch(executor: CpuExecutor) -> None:
    draw = Drawing(x=(1, 5, 8))
    draw.weights["mask"] = torch.zeros(5, 5)
    draw.weights["mask"][2] = -torch.inf
    scores = draw.op("aten.matmul", "x", draw.op("aten.permute", "x", dims=[0, 2, 1]))
    odds = draw.op("aten.softmax", draw.op("aten.add", scores, "mask"), dim=-1)
    graph, constants = draw.static(draw.op("aten.matmul", odds, "x"))

    check(fuse_attention(graph, constants), constants, executor, 2e-6)


def test_parts_keep_all_threads_busy() -> None:
    assert parts_of(12, 20, 2) == 1
    assert parts_of(1, 20, 2) == 2
    assert parts_of(3, 20, 2) == 2
    assert parts_of(1, 1, 8) == 1


def made(
    kind: str, inputs: dict[str, Tensor | None], threads: int, **attributes: Literal
) -> Tensor:
    graph, weights = unit_graph(kind, inputs, [n for n in inputs if n != "x"], attributes)
    kernel = all_kernels(graph, weights)[VARIANT]
    result = on_tensors(kernel, threads)(*inputs.values())
    return result if isinstance(result, Tensor) else result[0]


def close(got: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    limit = tolerance * max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape", [(1,), (3, 1), (2, 7, 5), (5, 16), (4, 3, 197), (2, 768)], ids=str
)
def test_softmax_of_rows(shape: tuple[int, ...], threads: int) -> None:
    for scale in (1, 1e-3, 50):
        x = scale * torch.randn(shape)

        got = made("aten.softmax", {"x": x}, threads, dim=-1)
        logs = made("aten.log_softmax", {"x": x}, threads, dim=-1)

        close(got, torch.softmax(x.double(), -1), 3e-7)
        close(logs, torch.log_softmax(x.double(), -1), 5e-7)


def test_a_row_of_minus_infinity_has_no_softmax() -> None:
    x = torch.randn(3, 5)
    x[1] = -torch.inf
    x[2, 3] = -torch.inf

    got = made("aten.softmax", {"x": x}, 1, dim=1)

    torch.testing.assert_close(got, torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("epilogue", [None, RELU, SILU], ids=str)
@pytest.mark.parametrize("has", ["", "w", "wb"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 7, 5), -1), ((3, 768), 1), ((4, 1), -1), ((2, 3, 5, 7), -2)], ids=str
)
def test_layer_norms(
    shape: tuple[int, ...], axis: int, has: str, epilogue: list[Literal] | None, threads: int
) -> None:
    x, over = 3 * torch.randn(shape) + 100, shape[axis:]
    w, b = (torch.randn(over) if name in has else None for name in "wb")
    more: dict[str, Any] = {} if epilogue is None else {"epilogue": epilogue}

    got = made("aten.layer_norm", {"x": x, "w": w, "b": b}, threads, axis=axis, eps=1e-5, **more)

    exact: list[Any] = [None if t is None else t.double() for t in (w, b)]
    wanted = torch.nn.functional.layer_norm(x.double(), over, exact[0], exact[1], 1e-5)
    close(got, activated(wanted, epilogue), 2e-5)


def test_rms_norms() -> None:
    x, w = torch.randn(3, 5, 77), torch.randn(77)

    got = made("braid.rms_norm", {"x": x, "w": w}, 2, axis=-1, eps=1e-6)

    wide = x.double()
    close(got, wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * w.double())


def activated(x: Tensor, epilogue: list[Literal] | None) -> Tensor:
    if epilogue is None:
        return x
    return x.relu() if epilogue is RELU else torch.nn.functional.silu(x)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("epilogue", [None, RELU, SILU], ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((1, 64, 56, 56), 32),
        ((2, 6, 5, 7), 3),
        ((3, 5, 1, 2), 1),
        ((2, 24, 9, 4), 24),
        ((1, 640, 3, 3), 32),
        ((1, 3, 1, 1), 1),
    ],
    ids=str,
)
def test_norms_of_groups_of_channels(
    shape: tuple[int, ...], groups: int, epilogue: list[Literal] | None, threads: int
) -> None:
    x = torch.randn(shape) * torch.rand(shape[1]).reshape(-1, 1, 1) + 30
    more: dict[str, Any] = {} if epilogue is None else {"epilogue": epilogue}
    for numbers in {groups, shape[1]}:
        w, b = torch.randn(numbers), torch.randn(numbers)

        more |= {"groups": groups, "eps": 1e-5}
        got = made("braid.group_norm", {"x": x, "w": w, "b": b}, threads, **more)

        exact: list[Any] = [t.double().repeat_interleave(shape[1] // numbers) for t in (w, b)]
        wanted = torch.nn.functional.group_norm(x.double(), groups, exact[0], exact[1], 1e-5)
        close(got, activated(wanted, epilogue), 3e-5)


def test_norms_of_each_channel() -> None:
    x, w, b = torch.randn(2, 19, 8, 5), torch.randn(19), torch.randn(19)

    got = made("braid.instance_norm", {"x": x, "w": w, "b": b}, 2, eps=1e-5)

    wanted = torch.nn.functional.instance_norm(x.double(), None, None, w.double(), b.double())
    close(got, wanted, 2e-5)


#   x ─> linear ─> views ─> ... ─> linear        nothing of it needs the interpreter
@pytest.mark.parametrize(
    "views",
    [
        [("braid.reshape", {"shape": [6, 20]}), ("braid.reshape", {"shape": [2, 3, 20]})],
        [("braid.unsqueeze", {"axes": [1]}), ("braid.squeeze", {"axes": [1]})],
        [("aten.permute", {"dims": [0, 2, 1]}), ("aten.permute", {"dims": [0, 2, 1]})],
        [("braid.slice", {"starts": [1], "ends": [2], "axes": [0]})],
        [("braid.slice", {"starts": [1], "ends": [9], "axes": [1], "steps": [2]})],
        [("aten.select", {"dim": 0, "index": 1})],
        [("aten.select", {"dim": 1, "index": 2})],
        [
            ("braid.reshape", {"shape": [2, 3, 4, 5]}),
            ("aten.permute", {"dims": [0, 2, 1, 3]}),
            ("aten.permute", {"dims": [0, 2, 1, 3]}),
            ("braid.reshape", {"shape": [2, 3, 20]}),
        ],
    ],
    ids=lambda views: "-".join(kind.split(".")[1] for kind, _ in views),
)
@pytest.mark.parametrize("is_output", [False, True])
def test_views_need_no_interpreter(
    views: list[tuple[str, dict[str, Literal]]], is_output: bool, executor: CpuExecutor
) -> None:
    draw = Drawing(x=(2, 3, 12))
    y = first = draw.op("aten.linear", "x", draw.constant(20, 12))
    for kind, attributes in views:
        y = draw.op(kind, y, **attributes)
    last = draw.op("aten.linear", y, draw.constant(7, 20))
    graph, constants = draw.static(last, *((y, first) if is_output else ()))

    plan = check(graph, constants, executor, 1e-5)

    assert plan.compiled is not None
    if not is_output:
        assert [type(part) for part in plan.compiled.parts] == [NativeSegment]


#   x ─> conv ─> rows of channels ─> norm, linear ─> images ─> conv        as in ConvNeXt
def test_channels_that_lie_side_by_side_are_rows_without_a_copy(executor: CpuExecutor) -> None:
    draw = Drawing(x=(2, 8, 6, 5))
    y = draw.op("aten.permute", draw.conv("x", 8, 16), dims=[0, 2, 3, 1])
    y = draw.op("aten.layer_norm", y, draw.constant(16), draw.constant(16), axis=-1, eps=1e-6)
    y = draw.op("aten.linear", y, draw.constant(12, 16))
    graph, constants = draw.static(draw.conv(draw.op("aten.permute", y, dims=[0, 3, 1, 2]), 12, 8))
    program = on_kernels(graph, constants, executor.threads)

    plan = check(graph, constants, executor, 1e-5)

    assert plan.compiled is not None
    assert [type(part) for part in plan.compiled.parts] == [NativeSegment]
    recipes = [unit.kernel.recipe_on(2) for unit in program.units]
    assert [bool(recipe and recipe.views) for recipe in recipes] == [
        False, True, False, False, True, False
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 8, 5, 4), (2, 8, 1, 1)),
        ((2, 8, 5, 4), (8, 1, 1)),
        ((2, 8, 5, 4), (2, 8, 5, 4)),
        ((2, 8, 5, 4), ()),
        ((3, 5, 7), (7,)),
        ((3, 5, 7), (1, 5, 7)),
        ((3, 5, 7), (3, 5, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_repeated_operands(
    kind: str,
    left: tuple[int, ...],
    right: tuple[int, ...],
    is_constant: bool,
    executor: CpuExecutor,
) -> None:
    draw = Drawing(x=left) if is_constant else Drawing(x=left, r=right)
    other = draw.constant(*right) if is_constant else "r"
    x = draw.op("aten.relu", "x") if len(left) == 3 else draw.op("braid.max_pool", "x", **POOL)
    y = draw.op(f"aten.{kind}", x, other)
    graph, constants = draw.static(y, draw.op("aten.relu", draw.op(f"aten.{kind}", y, other)))
    program = on_kernels(graph, constants, executor.threads)
    inputs = {name: torch.rand([int(e) for e in s.shape]) + 0.5 for name, s in graph.inputs.items()}

    _, got = ran(program, executor, inputs)

    for name, wanted in interpret(graph, wide(constants), wide(inputs)).items():
        close(got[name], wanted)


POOL: dict[str, Literal] = {
    "kernel": [1, 1], "stride": [1, 1], "pads": [0, 0, 0, 0], "dilation": [1, 1]
}  # fmt: skip


def random_rows(seed: int, units: int) -> tuple[OpGraph, Weights]:
    """Linear layers, norms, softmaxes, sums and views of values [4, 6, 8]; some are outputs."""
    chance, draw = random.Random(seed), Drawing(x=(4, 6, 8))
    values = ["x"]
    for _ in range(units):
        x = chance.choice(values[-5:])
        match chance.randrange(7):
            case 0:
                x = draw.op("aten.linear", x, draw.constant(8, 8))
            case 1:
                x = draw.op("aten.layer_norm", x, "", axis=-1, eps=1e-5)
            case 2:
                x = draw.op("aten.softmax", x, dim=2)
            case 3:
                x = draw.op("aten.add", x, chance.choice(values))
            case 4:
                x = draw.op(
                    "braid.reshape", draw.op("braid.reshape", x, shape=[24, 8]), shape=[4, 6, 8]
                )
            case 5:
                x = draw.op(
                    "braid.reshape", draw.op("aten.permute", x, dims=[1, 0, 2]), shape=[4, 6, 8]
                )
            case 6:
                halves = draw.op("braid.slice", x, starts=[3], ends=[6], axes=[1])
                x = draw.op("aten.cat", halves, halves, dim=1)
        values.append(x)
    graph, weights = draw.graph(values[-1], *chance.sample(values[1:], 2))
    return specialise(graph, weights, graph.inputs)


@pytest.mark.parametrize("barriers", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_views_in_lanes_give_the_interpreter_s_numbers(
    executor: CpuExecutor, seed: int, barriers: bool
) -> None:
    graph, constants = random_rows(seed, units=20)
    inputs = {"x": torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(seed))}
    program = on_kernels(graph, constants, executor.threads)
    plan = in_lanes(program, executor.threads, random_plan(graph, seed, barriers))

    for _ in range(2):
        got = run(executor, program, plan, inputs)

    for name, wanted in interpret(graph, constants, inputs).items():
        torch.testing.assert_close(got[name], wanted, rtol=1e-4, atol=1e-4)
