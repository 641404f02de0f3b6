"""Elements of any type, tables, reductions and resizing outside the interpreter, against torch."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from braid.core.errors import BraidError, InvalidRequest
from braid.core.graph import Literal, OpGraph
from braid.core.tensor import TensorType
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.kernels.element_units import OPERATIONS, REDUCTIONS
from braid.engine.cpu.kernels.elementwise_units import image_values
from braid.engine.cpu.native.find import find_native
from braid.engine.cpu.segments import NativeSegment
from braid.engine.onednn.library import Unsupported
from braid.engine.ops.kinds import call
from braid.engine.passes.body import Weights
from braid.engine.passes.specialise import interpret
from tests.engine.cpu.executors import executor_of, on_kernels, on_tensors
from tests.engine.cpu.test_kernels import all_kernels, unit_graph
from tests.engine.cpu.test_native_units import check, ran
from tests.engine.passes.drawing import Drawing

pytestmark = pytest.mark.skipif(find_native() is None, reason="the part in C was not built")

TYPES = [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32]
MOVED = [*TYPES, torch.float16, torch.bfloat16, torch.float64, torch.int16]


executor = executor_of(threads=2)


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Few values, so that comparisons find equal ones; the ends of whole types among them."""
    if dtype.is_floating_point:
        return torch.randint(-3, 4, shape).to(dtype) / 2
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    ends = torch.iinfo(dtype)
    some = torch.tensor([ends.min, ends.max, 0, 1, 2, 3])
    return some[torch.randint(0, len(some), shape)].to(dtype)


def same(kind: str, inputs: dict[str, Tensor | None], **attributes: Literal) -> None:
    """The kernel exists, and answers to the bit what torch does, with 1 and 3 threads."""
    results = ("y", "places") if kind == "braid.topk" else ("y",)
    graph, weights = unit_graph(kind, inputs, [], attributes, results)
    (unit,) = graph.operators
    wanted = call(unit, list(inputs.values()))
    kernel = next(iter(all_kernels(graph, weights).values()))
    assert kernel.recipe is not None
    for threads in (1, 3):
        result = on_tensors(kernel, threads)(*inputs.values())
        got = (result,) if isinstance(result, Tensor) else result
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 5), (3, 5)),
    ((1, 1, 4, 6), (2, 3, 1, 6)),
    ((7,), (2, 1)),
    ((1,), (1,)),
    ((2, 600), (600,)),
    ((130, 1, 2), (1, 300, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["eq", "lt", "le", "gt", "ge", "logical_and", "logical_xor"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_comparisons_and_logic(name: str, dtype: torch.dtype, shapes: tuple[Any, Any]) -> None:
    a, b = (numbers(dtype, shape) for shape in shapes)
    same(f"aten.{name}", {"a": a, "b": b})
    same("aten.logical_not", {"a": a})


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_arithmetic_of_whole_numbers_wraps(
    name: str, dtype: torch.dtype, shapes: tuple[Any, Any]
) -> None:
    a, b = (numbers(dtype, shape) for shape in shapes)
    same(f"aten.{name}", {"a": a, "b": b})


def test_not_numbers_are_compared_as_torch_does() -> None:
    a = torch.tensor([torch.nan, 1, -0.0, torch.inf, -torch.inf, torch.nan])
    b = torch.tensor([torch.nan, torch.nan, 0.0, torch.inf, 1, 2])
    for name in ("eq", "lt", "le", "gt", "ge", "logical_or", "logical_and"):
        same(f"aten.{name}", {"a": a, "b": b})
    same("braid.cast", {"a": a}, dtype="BOOL")
    same("aten.where", {"condition": a > 0, "a": a, "b": b})


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_both_operands_may_be_repeated(name: str) -> None:
    given: dict[str, Tensor | None] = {"a": torch.randn(3, 1, 5, 1), "b": torch.randn(4, 1, 7)}
    more: dict[str, Literal] = {"truncate": True} if name == "div" else {}
    same(f"aten.{name}", given, **more)


@pytest.mark.parametrize("target", ["BOOL", "UINT8", "INT8", "INT32", "INT64", "FP32"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_casts(dtype: torch.dtype, target: str) -> None:
    x = numbers(dtype, (3, 411))
    graph, weights = unit_graph("braid.cast", {"x": x}, [], {"dtype": target})
    first = next(iter(all_kernels(graph, weights).values()))
    if dtype == torch.float32 and target not in ("BOOL", "FP32"):
        assert first.recipe is None  # what is out of range depends on the processor
    elif graph.operators:
        same("braid.cast", {"x": x}, dtype=target)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_choices(dtype: torch.dtype, shapes: tuple[Any, Any]) -> None:
    a, b = (numbers(dtype, shape) for shape in shapes)
    condition = torch.rand(torch.broadcast_shapes(*shapes)) < 0.5
    same("aten.where", {"condition": condition, "a": a, "b": b})
    same("aten.where", {"condition": condition[..., :1], "a": b, "b": a})


VIEWS: list[tuple[str, Mapping[str, Literal]]] = [
    ("aten.select", {"dim": 1, "index": 2}),
    ("braid.slice", {"starts": [1], "ends": [9], "axes": [2], "steps": [3]}),
    ("aten.permute", {"dims": [2, 0, 1]}),
    ("braid.reshape", {"shape": [4, -1]}),
    ("braid.expand", {"shape": [5, 4, 3, 30]}),
    ("braid.pad", {"pads": [0, -1, 0, 0, 0, -7]}),
    ("braid.pad", {"pads": [0, 0, 0, 0, 0, 0]}),
]


@pytest.mark.parametrize(("kind", "attributes"), VIEWS, ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_views_of_any_type(
    kind: str, attributes: Mapping[str, Literal], dtype: torch.dtype
) -> None:
    same(kind, {"x": numbers(dtype, (4, 3, 30))}, **attributes)


@pytest.mark.parametrize("indices", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_gathers(dtype: torch.dtype, indices: torch.dtype) -> None:
    x = numbers(dtype, (4, 30, 70))
    for axis in (0, 1, -1):
        extent = x.shape[axis]
        at = torch.randint(-extent, extent, (3, 25)).to(indices)
        same("braid.gather", {"x": x, "at": at}, axis=axis)
        same("braid.gather", {"x": x, "at": at.abs() % extent}, axis=axis, wrap=False)


@pytest.mark.parametrize("indices", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_gathers_of_single_elements(dtype: torch.dtype, indices: torch.dtype) -> None:
    x = numbers(dtype, (4, 30, 70))
    for axis, extent in enumerate(x.shape):
        shape = [*x.shape]
        shape[axis] = 11
        at = torch.randint(-extent, extent, shape).to(indices)
        same("braid.gather_elements", {"x": x, "at": at}, axis=axis)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_gathers_at_tuples(dtype: torch.dtype) -> None:
    x = numbers(dtype, (3, 7, 5, 2))
    for depth in range(1, 5):
        at = torch.stack([torch.randint(-e, e, (4, 6)) for e in x.shape[:depth]], -1)
        same("braid.gather_nd", {"x": x, "at": at})


def test_a_wrong_index_of_a_tuple_is_refused_by_its_own_range(executor: CpuExecutor) -> None:
    draw = Drawing(x=(5, 7, 4))
    draw.inputs["at"] = TensorType("INT64", (3, 2))
    graph, constants = draw.static(draw.op("braid.gather_nd", "x", "at"))
    inputs = {"x": torch.randn(5, 7, 4), "at": torch.tensor([[0, 6], [4, 7], [-5, -7]])}

    with pytest.raises(InvalidRequest, match="cannot use the index 7; it takes -7 to 6"):
        outside(graph, constants, executor, inputs)
    inputs["at"][1, 1] = 0
    outside(graph, constants, executor, inputs)


@pytest.mark.parametrize("dtype", [*TYPES, torch.float64], ids=str)
def test_concatenations(dtype: torch.dtype) -> None:
    for dim, extents in ((0, (2, 1)), (1, (3, 4, 2)), (-1, (1, 1, 5)), (-1, (1, 1, 1))):
        shapes = [[2, 3, 4] for _ in extents]
        for shape, extent in zip(shapes, extents, strict=True):
            shape[dim] = extent
        parts: dict[str, Tensor | None] = {
            f"x{at}": numbers(dtype, (*shape,)) for at, shape in enumerate(shapes)
        }
        same("aten.cat", parts, dim=dim)
    pair: dict[str, Tensor | None] = {name: numbers(dtype, (3, 700, 1)) for name in "ab"}
    same("aten.cat", pair, dim=2)


EXTREME = torch.tensor(
    [[3.0, torch.nan, -torch.inf, 3, torch.nan, torch.inf], [0, -0.0, 5, 5, 1, 2]]
)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_largest_and_least(dtype: torch.dtype, axis: int) -> None:
    tensors = [numbers(dtype, (5, 12, 7))]
    if dtype == torch.float32:
        tensors += [EXTREME, EXTREME.t().contiguous(), torch.randn(300, 100)]
    for x in tensors:
        for kind in ("braid.argmax", "braid.argmin"):
            for keepdim in (False, True):
                same(kind, {"x": x}, dim=axis, keepdim=keepdim)
            same(kind, {"x": x}, dim=axis, select_last=True)
        for largest in (False, True):
            for count in (1, 2, x.shape[axis]):
                if count <= 64:
                    same("braid.topk", {"x": x}, dim=axis, k=[count], largest=largest)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_running_sums(dtype: torch.dtype, axis: int) -> None:
    same("braid.cumsum", {"x": numbers(dtype, (3, 9, 4))}, dim=axis)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", ["aten.sum", "aten.mean", "braid.l2_norm", "aten.amax", "aten.amin"]
)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((5,), [0]),
        ((2, 3, 1000), [-1]),
        ((2, 300, 37), [1]),
        ((2, 300, 37), [0, 1]),
        ((2, 5, 9, 33), [1, 2]),
        ((4, 1, 9), [0, 1, 2]),
        ((3, 70, 1), [1]),
        ((2, 5, 6, 7), [2, 3]),
        ((2, 5, 6, 7), [0, 2]),
        ((4, 3, 6, 7, 5), [3, 1]),
    ],
    ids=str,
)
def test_reductions(kind: str, shape: tuple[int, ...], dims: list[Literal], level: int) -> None:
    native = find_native()
    assert native is not None
    native.braid_limit_vectors(level)
    try:
        for keepdim in (False, True):
            x = torch.randn(shape) + 1
            attributes: dict[str, Literal] = {"dims": dims, "keepdim": keepdim}
            graph, weights = unit_graph(kind, {"x": x}, [], attributes)
            (unit,) = graph.operators
            (wanted,) = call(unit, [x.double()])
            kernel = next(iter(all_kernels(graph, weights).values()))
            assert kernel.recipe is not None
            for threads in (1, 2):
                result = on_tensors(kernel, threads)(x)
                got = result if isinstance(result, Tensor) else result[0]
                torch.testing.assert_close(got.double(), wanted, rtol=2e-6, atol=2e-6)
    finally:
        native.braid_limit_vectors(2)


OF_ANY_TYPE: dict[str, dict[str, Literal]] = {
    **{kind: {} for kind in OPERATIONS},
    **{kind: {"dims": [-1], "keepdim": True} for kind in REDUCTIONS},
    "braid.cumsum": {"dim": 1},
    "aten.softmax": {"dim": -1},
    "aten.log_softmax": {"dim": -1},
}


@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("kind", OF_ANY_TYPE)
def test_no_kernel_takes_a_type_for_another(kind: str, dtype: torch.dtype) -> None:
    """Every kernel of a unit on some type answers as torch does, or torch has none."""
    count = 2 if kind in OPERATIONS and kind != "aten.logical_not" else 1
    x = {f"x{n}": (torch.rand(6, 64) * 3 + 1).to(dtype) for n in range(count)}
    try:
        graph, weights = unit_graph(kind, {**x}, [], OF_ANY_TYPE[kind])
        (wanted,) = call(graph.operators[0], [*x.values()])
    except (BraidError, RuntimeError):
        return
    for name, kernel in all_kernels(graph, weights).items():
        try:
            result = on_tensors(kernel, 1)(*x.values())
        except Unsupported:  # bf16 on this processor: such a kernel is not chosen
            continue
        got = result if isinstance(result, Tensor) else result[0]
        assert got.dtype == wanted.dtype
        bound = 0.02 if dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(got, wanted, rtol=bound, atol=bound, msg=name)


@pytest.mark.parametrize(
    "how",
    [
        {"mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"},
        {"mode": "nearest", "coordinates": "half_pixel"},
        {"mode": "linear", "coordinates": "half_pixel"},
        {"mode": "linear", "coordinates": "pytorch_half_pixel"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "scales", [[1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 0.5, 0.75]], ids=str
)
def test_resizing(how: dict[str, Literal], scales: list[Literal]) -> None:
    x = torch.randn(2, 5, 4, 8)
    graph, weights = unit_graph("braid.resize", {"x": x}, [], {**how, "scales": scales})
    (unit,) = graph.operators
    (wanted,) = call(unit, [x])
    kernels = all_kernels(graph, weights)
    if how["mode"] == "nearest" and scales[2] == 0.5:
        assert "onednn" not in kernels  # libraries differ in what is nearest
        return
    result = on_tensors(kernels["onednn"], 2)(x)
    torch.testing.assert_close(result if isinstance(result, Tensor) else result[0], wanted)


def outside(graph: OpGraph, constants: Weights, executor: CpuExecutor, inputs: Weights) -> None:
    """The plan answers as the interpreter does, and nothing of it runs in Python."""
    program = on_kernels(graph, constants, executor.threads)
    plan, got = ran(program, executor, inputs)
    assert plan.compiled is not None
    assert [type(part) for part in plan.compiled.parts] == [NativeSegment]
    for name, wanted in interpret(graph, constants, inputs).items():
        torch.testing.assert_close(got[name], wanted, rtol=1e-5, atol=1e-5)


def encoder() -> tuple[OpGraph, Weights]:
    """Token ids and a mask, as decoders read them: a table, and a mask of sums for attention.

    ids ─> rows of a table ─> linear ─> scores ─> + ─> softmax ─> x values
    mask ─> bool ─> and causal ─> 0 or -inf ──────^
    """
    draw = Drawing()
    draw.inputs = dict.fromkeys(("ids", "mask"), TensorType("INT64", (1, 6)))
    x = draw.op("braid.gather", draw.constant(11, 8), "ids", axis=0)
    keys = draw.op("braid.cast", "mask", dtype="BOOL")
    keys = draw.op("braid.reshape", keys, shape=[1, 1, 1, 6])
    draw.weights["causal"] = torch.ones(6, 6).tril().bool()
    draw.weights["zero"], draw.weights["low"] = torch.tensor(0.0), torch.tensor(-1e9)
    shown = draw.op("aten.logical_and", keys, "causal")
    added = draw.op("aten.where", shown, "zero", "low")
    q = draw.op("aten.linear", x, draw.constant(8, 8))
    q = draw.op("braid.reshape", q, shape=[1, 1, 6, 8])
    k = draw.op("aten.permute", q, dims=[0, 1, 3, 2])
    odds = draw.op("aten.softmax", draw.op("aten.add", draw.op("aten.matmul", q, k), added), dim=-1)
    last = draw.op("braid.reshape", draw.op("aten.matmul", odds, q), shape=[1, 6, 8])
    return draw.static(last, draw.op("aten.select", last, dim=1, index=0))


def test_token_ids_and_masks_need_no_interpreter(executor: CpuExecutor) -> None:
    graph, constants = encoder()
    for _ in range(3):
        inputs = {"ids": torch.randint(-11, 11, (1, 6)), "mask": torch.tensor([[1, 1, 5, 1, 0, 0]])}
        outside(graph, constants, executor, inputs)


def test_an_index_that_is_none_is_refused_by_name_and_the_next_request_is_served(
    executor: CpuExecutor,
) -> None:
    graph, constants = encoder()
    mask = torch.ones(1, 6, dtype=torch.int64)
    for wrong in (11, -12, 1 << 40):
        inputs = {"ids": torch.tensor([[0, 1, wrong, 3, 4, 5]]), "mask": mask}
        with pytest.raises(
            InvalidRequest, match=rf"cannot use the index {wrong}; it takes -11 to 10"
        ):
            outside(graph, constants, executor, inputs)
    outside(graph, constants, executor, {"ids": torch.tensor([[0, 1, 2, 3, 4, 5]]), "mask": mask})


#   x ─> convolution ─> y, an output ─> convolution ─> z          callers want [n, c, h, w]
def test_outputs_that_are_images_reach_callers_without_the_interpreter(
    executor: CpuExecutor,
) -> None:
    draw = Drawing(x=(2, 3, 9, 8))
    y = draw.conv("x", 3, 6)
    z = draw.conv(y, 6, 4)
    graph, constants = draw.static(y, z)

    outside(graph, constants, executor, {"x": torch.randn(2, 3, 9, 8)})


#   x ─> convolution ─> y, an output ─> running sum, in Python ─> four convolutions ─> z
def test_outputs_that_are_images_and_that_python_reads_stay_as_they_are(
    executor: CpuExecutor,
) -> None:
    draw = Drawing(x=(2, 6, 9, 8))
    y = draw.conv("x", 6, 6)
    z = draw.op("braid.cumsum", y, dim=1)
    for _ in range(4):
        z = draw.conv(z, 6, 6)
    graph, constants = draw.static(y, z)
    program = on_kernels(graph, constants, executor.threads)
    inputs = {"x": torch.randn(2, 6, 9, 8)}

    _, got = ran(program, executor, inputs)

    for name, wanted in interpret(graph, constants, inputs).items():
        torch.testing.assert_close(got[name], wanted, rtol=1e-4, atol=1e-4)
        assert got[name].is_contiguous()


def test_reductions_over_other_axes_leave_values_dense() -> None:
    draw = Drawing(x=(1, 8, 9, 6))
    graph, _ = draw.static(draw.op("braid.l2_norm", "x", dims=[1, 2], keepdim=True))

    assert not image_values(graph)


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_random_chains(count: int, executor: CpuExecutor) -> None:
    """Sums, choices, views and reductions of random shapes, one after the other."""
    chance = random.Random(5)
    for _ in range(count):
        shape = tuple(chance.randint(1, 6) for _ in range(chance.randint(1, 4)))
        draw = Drawing(x=shape)
        draw.weights["zero"] = torch.tensor(0.0)
        y, extents = "x", list(shape)
        for _ in range(chance.randint(1, 6)):
            axis = chance.randrange(len(extents))
            match chance.randrange(5):
                case 0:
                    order = chance.sample(range(len(extents)), len(extents))
                    y, extents = (
                        draw.op("aten.permute", y, dims=list(order)),
                        [extents[a] for a in order],
                    )
                case 1:
                    mask = draw.op("aten.gt", y, "zero")
                    y = draw.op("aten.where", mask, y, "zero")
                case 2:
                    kind = chance.choice(["aten.sum", "aten.amax", "aten.mean"])
                    total = draw.op(kind, y, dims=[axis], keepdim=True)
                    y = draw.op("aten.sub", y, total)
                case 3:
                    places = torch.tensor([chance.randrange(extents[axis]) for _ in range(3)])
                    name = f"at{len(draw.weights)}"
                    draw.weights[name] = places
                    y = draw.op("braid.gather", y, name, axis=axis)
                    extents[axis] = 3
                case 4:
                    wide = [e if e > 1 else chance.randint(1, 3) for e in extents]
                    y, extents = draw.op("braid.expand", y, shape=list(wide)), wide
        graph, constants = draw.static(y)
        if graph.operators:
            check(graph, constants, executor, 1e-5)
