"""The CUDA kernels on a GPU: right numbers, also over poisoned memory and inside a capture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from braid.core.graph import Literal, OpGraph
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.ops.kinds import call
from braid.engine.passes.specialise import interpret
from braid.engine.program.kernel import Kernel, PackedWeights
from braid.engine.program.program import Binding, bind
from tests.engine.cpu.test_kernels import convolution_attributes, unit_graph
from tests.engine.program.test_merge import Units

pytestmark = pytest.mark.gpu

RELU: Literal = [["aten.relu"]]
GELU: Literal = [["aten.gelu", "approximate", "tanh"]]
LIMITS = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of errors, relative to the largest element. FP32: Winograd's convolutions; TF32 is above."""


@dataclass(frozen=True)
class Case:
    kind: str
    shapes: Mapping[str, tuple[int, ...]]
    attributes: Mapping[str, Literal]


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], *, residual: bool = False, **changed: Literal
) -> Case:
    padding: Literal = [k // 2 for k in w[2:]]
    window: dict[str, Literal] = {"padding": padding, "epilogue": RELU, **changed}
    shapes = {"x": x, "w": w, "b": (w[0],)}
    if residual:
        return Case(
            "braid.convolution_add", {**shapes, "r": (x[0], w[0], *x[2:])},
            convolution_attributes(**window),
        )  # fmt: skip
    return Case("aten.convolution", shapes, convolution_attributes(**window))


CASES = {
    "3x3": convolution((2, 48, 17, 17), (64, 48, 3, 3)),
    "3x3 strided": convolution((2, 48, 18, 17), (64, 48, 3, 3), stride=[2, 2]),
    "7x7": convolution((1, 3, 64, 64), (64, 3, 7, 7), stride=[2, 2]),
    "1x7": convolution((2, 128, 17, 17), (192, 128, 1, 7)),
    "1x1": convolution((2, 192, 17, 17), (64, 192, 1, 1)),
    "1x1 without an activation": convolution((2, 192, 17, 17), (64, 192, 1, 1), epilogue=[]),
    "odd channels": convolution((2, 5, 9, 9), (7, 5, 3, 3)),
    "residual": convolution((2, 64, 14, 14), (64, 64, 3, 3), residual=True),
    "residual, 1x1": convolution((2, 64, 14, 14), (128, 64, 1, 1), residual=True),
    "depthwise": convolution((2, 44, 21, 21), (44, 1, 5, 5), groups=44, epilogue=[]),
    "depthwise, relu": convolution((2, 44, 21, 21), (44, 1, 7, 7), groups=44),
    "grouped": convolution((2, 64, 14, 14), (64, 4, 3, 3), groups=16),
    "silu": convolution((2, 48, 17, 17), (64, 48, 3, 3), epilogue=[["aten.silu"]]),
    "linear": Case("aten.linear", {"x": (2, 7, 96), "w": (64, 96), "b": (64,)}, {}),
    "linear relu": Case(
        "aten.linear", {"x": (5, 96), "w": (64, 96), "b": (64,)}, {"epilogue": RELU}
    ),
    "linear gelu": Case(
        "aten.linear", {"x": (2, 7, 96), "w": (64, 96), "b": (64,)}, {"epilogue": GELU}
    ),
    "linear residual": Case(
        "braid.linear_add", {"x": (2, 7, 96), "w": (64, 96), "b": (64,), "r": (2, 7, 64)}, {}
    ),
    "weighted sum": Case(
        "braid.weighted_sum", dict.fromkeys("xyz", (2, 48, 17, 17)),
        {"weights": [0.25, -3.0, 1.0], "epilogue": RELU},
    ),
    "softmax": Case("aten.softmax", {"x": (4, 12, 64, 64)}, {"dim": -1}),
}  # fmt: skip


def poison() -> None:
    """Leave NaN in the memory that the next tensors get, small and large."""
    device = torch.device("cuda")
    held = [torch.full((n,), torch.nan, device=device) for n in (1 << 26, *[1 << 16] * 64)]
    held += [torch.full((512,), torch.nan, device=device) for _ in range(256)]
    del held


def captured(kernel: Kernel, operands: list[Tensor | None]) -> Tensor:
    """The result of a replay; the memory it writes held NaN."""
    cuda: Any = torch.cuda  # typed in some builds only
    stream = cuda.Stream()
    with torch.cuda.stream(stream):
        kernel.function(*operands)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = kernel.function(*operands)
            got = result if isinstance(result, Tensor) else result[0]
    got.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    return got


def relative_error(got: Tensor, wanted: Tensor) -> float:
    gap = (got.double().cpu() - wanted.double()).abs().max()
    return float(gap / wanted.double().abs().max())


def unit_of(case: Case, dtype: torch.dtype) -> tuple[OpGraph, dict[str, Tensor], list[Tensor]]:
    """The unit, its constants, and its operands."""
    operands = {
        name: (torch.randn(shape) / (shape[1:] or (1,))[0] ** 0.5).to(dtype)
        if name == "w"
        else torch.randn(shape).to(dtype)
        for name, shape in case.shapes.items()
    }
    constants = [name for name in operands if name in ("w", "b")]
    graph, weights = unit_graph(case.kind, operands, constants, case.attributes)
    return graph, weights, list(operands.values())


@pytest.mark.filterwarnings("ignore")  # Inductor's own
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_kernel_agrees_over_poisoned_memory_and_in_a_capture(
    case: Case, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    graph, weights, operands = unit_of(case, dtype)
    source, packed = CudaKernels(torch.device("cuda")), PackedWeights()
    placed = source.place(graph, weights, packed)
    (unit,) = graph.operators
    (wanted,) = call(unit, [operand.double() for operand in operands])
    moved = [placed.get(name, x.cuda()) for name, x in zip(unit.inputs, operands, strict=True)]
    errors = {}
    for kernel in source.variants(unit, graph, placed, packed):
        for _ in range(2):
            poison()
            result = kernel.function(*moved)
            got = result if isinstance(result, Tensor) else result[0]
            errors[kernel.variant] = relative_error(got, wanted)
            assert errors[kernel.variant] <= LIMITS[dtype], errors
        again = relative_error(captured(kernel, [*moved]), wanted)
        assert again <= LIMITS[dtype], (kernel.variant, again)
    refused = [r.getMessage() for r in caplog.records if r.name.startswith("braid")]
    assert not refused, "a library refused a kernel"
    assert len(errors) > 1 or case.kind == "aten.softmax", "only the registry's kernel was tried"


def test_tf32_rounds_and_fp32_does_not() -> None:
    case = Case("aten.linear", {"x": (512, 1024), "w": (512, 1024), "b": (512,)}, {})
    graph, weights, operands = unit_of(case, torch.float32)
    (unit,) = graph.operators
    (wanted,) = call(unit, [operand.double() for operand in operands])
    error = {}
    for precision in ("tf32", "fp32"):
        source, packed = CudaKernels(torch.device("cuda"), precision), PackedWeights()
        placed = source.place(graph, weights, packed)
        moved = [placed.get(name, x.cuda()) for name, x in zip(unit.inputs, operands, strict=True)]
        for kernel in source.variants(unit, graph, placed, packed):
            result = kernel.function(*moved)
            got = result if isinstance(result, Tensor) else result[0]
            error[precision] = relative_error(got, wanted)
    assert error["fp32"] < 3e-6
    assert 3e-5 < error["tf32"] < 5e-3


@pytest.mark.parametrize("images", [True, False])
def test_merged_units(images: bool) -> None:
    if images:
        drawing = Units(torch.randn(2, 64, 17, 17))
        drawing.beside(48, (1, 1)).beside(64, (3, 3)).beside(32, (1, 7))
    else:
        drawing = Units(torch.randn(4, 16, 64)).linear(64).linear(64).linear(32)
    graph, constants = drawing.joined
    for layout in ("nchw", "nhwc"):
        source = CudaKernels(torch.device("cuda"), layout=layout, compile_=None)
        program = bind(graph, constants, Binding(source, 8, PackedWeights()))
        poison()

        parts = program.unit((0, 1, 2)).kernel.function(drawing.x.cuda())

        wanted = interpret(graph, constants, {"x": drawing.x})
        if images:
            torch.testing.assert_close(
                torch.cat(list(parts), 1).cpu(), wanted["cat"], rtol=1e-4, atol=1e-4
            )
        else:
            for number, part in enumerate(parts):
                torch.testing.assert_close(
                    part.cpu(), wanted[f"y{number}"], rtol=1e-4, atol=1e-4
                )  # fmt: skip
