"""Questions 3 and 5: which way to run a convolution is fastest; Inductor's units side by side."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import torch
from torch import Tensor

from benchmarks.cuda.clock import largest_error
from benchmarks.cuda_questions.answers import Figure, Row
from benchmarks.cuda_questions.lab import Job, Lab
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.precision import HALF
from braid.core.tensor import TensorType
from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.cuda.kernels.candidates import CudaKernels
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.kinds import call
from braid.engine.passes.specialise import specialise
from braid.engine.program.kernel import Kernel, PackedWeights
from braid.engine.program.kernel_choice import REGISTRY

PRECISIONS = ("fp32", "tf32", "fp16")


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution with bias and ReLU over one image."""

    name: str
    image: tuple[int, int]  # channels, side
    weight: tuple[int, int, int, int]
    stride: int = 1
    groups: int = 1
    epilogue: str = "aten.relu"


CONVOLUTIONS = (
    Convolution("Inception V3, 3x3 at 147", (32, 147), (64, 32, 3, 3)),
    Convolution("Inception V3, 5x5 at 35", (48, 35), (64, 48, 5, 5)),
    Convolution("Inception V3, 1x1 at 35", (288, 35), (64, 288, 1, 1)),
    Convolution("Inception V3, 1x7 at 17", (192, 17), (192, 192, 1, 7)),
    Convolution("Inception V3, 1x1 at 17", (768, 17), (192, 768, 1, 1)),
    Convolution("Inception V3, 3x3 at 8", (448, 8), (384, 448, 3, 3)),
    Convolution("NASNet-A, depthwise 5x5 at 42", (168, 42), (168, 1, 5, 5), groups=168),
    Convolution("NASNet-A, depthwise 7x7 at 83", (96, 83), (96, 1, 7, 7), 2, groups=96),
    Convolution("NASNet-A, 1x1 at 21", (1008, 21), (336, 1008, 1, 1)),
    Convolution("GoogLeNet, 7x7 at 224", (3, 224), (64, 3, 7, 7), 2),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """A unit on the device, and its outputs in FP64."""

    unit: Operator
    graph: OpGraph
    constants: Mapping[str, Tensor]
    operands: Sequence[Tensor]
    wanted: Sequence[Tensor]
    packed: PackedWeights


def convolutions(lab: Lab, shapes: Sequence[Convolution] = CONVOLUTIONS) -> Iterator[Row]:
    """Microseconds of each variant, and the largest error over outputs that held NaN before."""
    for precision in PRECISIONS:
        source = CudaKernels(lab.driver.device, precision, compile_=None)
        for shape in shapes:
            bench = bench_of(lab, source, shape, precision)
            variants = source.variants(bench.unit, bench.graph, bench.constants, bench.packed)
            with refusals() as refused:
                by_variant = {kernel.variant: measured(lab, bench, kernel) for kernel in variants}
            us = {name: one.us for name, one in by_variant.items()}
            figures: dict[str, Figure] = {
                "best": min(us, key=lambda name: us[name]),
                **us,
                "error": max(one.error for one in by_variant.values()),
                "first_runs_ms": sum(one.first_run_ms for one in by_variant.values()),
                "refused": "; ".join(refused),
            }
            yield Row(f"{precision}, {shape.name}", figures)


def compiled_units(lab: Lab) -> Iterator[Row]:
    """Units compiled by TorchInductor: captured, alone and on three streams side by side."""
    source = CudaKernels(lab.driver.device)
    for shape in (
        Convolution("1x1 at 17 and SiLU", (192, 17), (192, 192, 1, 1), epilogue="aten.silu"),
        Convolution("3x3 at 8 and GELU", (192, 8), (192, 192, 3, 3), epilogue="aten.gelu"),
    ):
        bench = bench_of(lab, source, shape, "fp32")
        variants = source.variants(bench.unit, bench.graph, bench.constants, bench.packed)
        for kernel in variants:
            if not kernel.variant.startswith("inductor") and kernel.variant != REGISTRY:
                continue
            with refusals() as refused:
                timing = measured(lab, bench, kernel)
            job = Job(kernel.run_on(1), bench.operands)
            yield Row(
                f"{shape.name}, {kernel.variant}",
                {
                    "us": timing.us,
                    "three_in_a_row_us": lab.branches_us([[job] * 3]),
                    "three_side_by_side_us": lab.branches_us([[job]] * 3),
                    "error": timing.error,
                    "first_run_s": timing.first_run_ms / 1e3,
                    "refused": "; ".join(refused),
                },
            )


class _Messages(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage()[:200])


@contextmanager
def refusals() -> Iterator[list[str]]:
    """What libraries refuse to run inside; the registry's kernel ran instead, and was measured."""
    handler, log = _Messages(), logging.getLogger("braid.kernels")
    log.addHandler(handler)
    try:
        yield handler.messages
    finally:
        log.removeHandler(handler)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a kernel takes, how far off it is, and what its first run took: choosing, compiling."""

    us: float
    error: float
    first_run_ms: float


def measured(lab: Lab, bench: Bench, kernel: Kernel) -> Measured:
    """Run a kernel for the first time, check it over NaN, and time it."""
    job = Job(kernel.run_on(1), bench.operands)
    began = monotonic()
    lab.driver.launch(lab.driver.stream(ORIGIN), job.run, job.inputs)
    lab.driver.synchronise()
    first_run_ms = (monotonic() - began) * 1e3
    captured = lab.capture([[job]])
    for output in captured.outputs:
        output.fill_(torch.nan)
    lab.replay_us(captured)
    error = largest_error(captured.outputs, bench.wanted)
    lab.driver.destroy(captured.graph)
    return Measured(lab.slope_us([[job]]), error, first_run_ms)


def bench_of(lab: Lab, source: CudaKernels, shape: Convolution, precision: str) -> Bench:
    """One unit of a network, with seeded values."""
    name = HALF.get(precision, "FP32")
    dtype, device = torch_dtype(name), lab.driver.device
    channels, side = shape.image
    generator = torch.Generator().manual_seed(0)
    fan_in = shape.weight[1] * shape.weight[2] * shape.weight[3]
    drawn = {
        "x": torch.randn(1, channels, side, side, generator=generator),
        "w": torch.randn(shape.weight, generator=generator) / fan_in**0.5,
        "b": torch.randn(shape.weight[0], generator=generator),
    }
    operands = {key: tensor.to(dtype) for key, tensor in drawn.items()}
    specs = {key: TensorType(name, tuple(tensor.shape)) for key, tensor in operands.items()}
    unit = Operator("unit", "aten.convolution", ("x", "w", "b"), ("y",), _attributes(shape))
    constants = {key: specs[key] for key in ("w", "b")}
    template = OpGraph("one", {"x": specs["x"]}, {"y": "y"}, constants, (unit,))
    weights = {key: operands[key] for key in constants}
    graph, weights = specialise(template, weights, template.inputs, {})
    (unit,) = graph.operators
    packed = PackedWeights()
    placed = source.place(graph, weights, packed)
    moved = [operands["x"].to(device), placed["w"], placed["b"]]
    wanted = call(unit, [operand.double() for operand in moved])
    return Bench(unit, graph, placed, moved, wanted, packed)


def _attributes(shape: Convolution) -> dict[str, Literal]:
    padding: Literal = [extent // 2 for extent in shape.weight[2:]]
    return {
        "stride": [shape.stride] * 2,
        "padding": padding,
        "dilation": [1, 1],
        "transposed": False,
        "output_padding": [0, 0],
        "groups": shape.groups,
        "epilogue": [[shape.epilogue]],
    }
