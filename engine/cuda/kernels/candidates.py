"""Kernels for CUDA: every way to run a unit there.

    variants(unit) ──> cuDNN, cuBLASLt   library_units.py
                       the registry's
                       TorchInductor     inductor.py

Each is a function of tensors on the current stream. The first run of one makes its weight's layout,
lets cuDNN and cuBLAS choose, or compiles, so it comes before any capture, in the capturing thread;
one that fails is replaced by the registry's (fallback_kernel.py). Inductor's come last: they run
only where they were measured to be fastest.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.precision import FP32, HALF, TF32
from braid.engine.cuda.kernels.fallback_kernel import Run, with_fallback
from braid.engine.cuda.kernels.inductor import (
    Compile,
    SharedCode,
    compile_unit,
    compiled_kernel,
    is_worth_compiling,
)
from braid.engine.cuda.kernels.library_units import (
    FORMATS,
    CudaSite,
    FusedOps,
    convolutions,
    linears,
)
from braid.engine.ops.dtypes import array_of, tensor_of
from braid.engine.ops.kinds import bound
from braid.engine.ops.whole import KIND as ON_HOST
from braid.engine.program.kernel import (
    REGISTRY,
    Kernel,
    MergedUnit,
    PackedWeights,
    Value,
    Values,
    kernel_signature,
)
from braid.engine.runtime.arrays import Array

_FLOATS = frozenset({"FP32", "FP16", "BF16"})


class CudaKernels:
    """The ``KernelSource`` of a CUDA device, for programs of one precision."""

    def __init__(
        self,
        device: torch.device,
        precision: str = FP32,
        *,
        layout: str = "",
        ops: FusedOps | None = None,
        compile_: Compile | None = compile_unit,
    ) -> None:
        """Pin torch's switches.

        ``layout``: "nchw" or "nhwc" of images where nothing was measured; empty: what tensor cores
        want, where they are used. ``compile_``: TorchInductor; None for none.
        """
        self._device = device
        self._precision = precision
        first = layout or ("nchw" if precision == FP32 else "nhwc")
        self._layouts = sorted(FORMATS, key=lambda name: name != first)
        self._ops = ops or FusedOps()
        self._compile = compile_
        self._code: WeakValueDictionary[str, SharedCode] = WeakValueDictionary()
        pin_fp32()

    def place(self, graph: OpGraph, constants: Values, packed: PackedWeights) -> dict[str, Tensor]:
        """Copies on the device, except of constants that units on the host read."""
        on_host = {name for unit in graph.operators if unit.kind == ON_HOST for name in unit.inputs}
        return {
            name: tensor_of(value) if name in on_host else self._placed(name, value, packed)
            for name, value in constants.items()
        }

    def on_host(self, value: Tensor) -> Array:
        return array_of(value.cpu())

    def cut(self, kernel: Kernel, merged: MergedUnit, threads: int) -> Kernel:
        """``kernel`` followed by cuts of its output; see ``KernelSource.cut``.

        Rows of a part of a matrix lie apart, which matrix products and attention read as they are.
        A part of an image is copied here, where it is measured: convolutions would copy it.
        """
        run, (weight, bias) = kernel.function, merged.tensors.values()
        extents = [part[merged.axis] for part in merged.parts]

        def cut(x: Tensor) -> tuple[Tensor, ...]:
            result = run(x, weight, bias)
            whole = result if isinstance(result, Tensor) else result[0]
            parts = torch.split(whole, extents, merged.axis)
            if merged.axis != 1:
                return parts
            last = whole.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if last else torch.contiguous_format
            return tuple(part.contiguous(memory_format=layout) for part in parts)

        return Kernel(f"{kernel.variant}, merged", cut)

    def _placed(self, name: str, value: Value, packed: PackedWeights) -> Tensor:
        key = "placed", name
        return packed.derived(key, value, lambda: tensor_of(value).to(self._device).contiguous())

    def signature(self, unit: Operator, graph: OpGraph) -> str:
        """Signature of the unit; TF32 and FP32 units differ in nothing else."""
        plain = kernel_signature(unit, graph)
        return f"{plain}-{TF32}" if self._precision == TF32 else plain

    def variants(
        self, unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> list[Kernel]:
        if unit.kind == ON_HOST:
            return [Kernel("host", self._on_host(bound(unit)))]
        plain = self._registry(unit)
        site = self._site(unit, graph, constants, packed)
        kernels: list[Kernel] = []
        if site is not None:
            kernels += convolutions(site) if unit.kind in _CONVOLUTIONS else linears(site)
        kernels = [with_fallback(kernel, plain, unit.name) for kernel in kernels]
        kernels.append(Kernel(REGISTRY, plain))
        if self._compile is not None and is_worth_compiling(unit):
            layout = self._layouts[0]
            shared = self._code.setdefault(self.signature(unit, graph), SharedCode())
            compiled = compiled_kernel(unit, layout, FORMATS[layout], self._compile, shared)
            kernels.append(with_fallback(compiled, plain, unit.name))
        if self._precision == TF32:
            return [_in_tf32(kernel) for kernel in kernels]
        return kernels

    def _site(
        self, unit: Operator, graph: OpGraph, constants: Mapping[str, Tensor], packed: PackedWeights
    ) -> CudaSite | None:
        """Shapes and weights for cuDNN and cuBLASLt; None if the unit is not for them."""
        if unit.kind not in _CONVOLUTIONS | _LINEARS or unit.attributes.get("transposed"):
            return None
        weight_name, bias_name = (*unit.inputs, "")[1:3]
        weight, bias = constants.get(weight_name), constants.get(bias_name)
        if weight is None or (bias_name and bias is None):
            return None
        specs = [graph.spec(name) for name in (*unit.inputs, *unit.outputs) if name]
        if len({spec.dtype for spec in specs}) > 1 or specs[0].dtype not in _FLOATS:
            return None
        if any(0 in spec.shape for spec in specs) or not specs[0].shape:
            return None
        if unit.kind in _CONVOLUTIONS and len(specs[0].shape) != 4:
            return None
        return CudaSite(unit, weight, bias, packed, self._ops, self._layouts)

    def _registry(self, unit: Operator) -> Run:
        """The registry's kernel; a unit without inputs makes its tensors on the device."""
        run = bound(unit)
        if any(unit.inputs):
            return run

        def made_here() -> Tensor | tuple[Tensor, ...]:
            with self._device:
                return run()

        return made_here

    def _on_host(self, run: Run) -> Run:
        """A kernel that runs on the host and waits for the device, so it cannot be captured."""

        def kernel(*inputs: Tensor) -> tuple[Tensor, ...]:
            results = run(*(operand.cpu() for operand in inputs))
            results = (results,) if isinstance(results, Tensor) else results
            return tuple(result.to(self._device) for result in results)

        return kernel


_CONVOLUTIONS = frozenset({"aten.convolution", "braid.convolution_add"})
_LINEARS = frozenset({"aten.linear", "braid.linear_add"})


def _in_tf32(kernel: Kernel) -> Kernel:
    run: Run = kernel.function

    def switched(*inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        with tensor_float_32():
            return run(*inputs)

    return Kernel(kernel.variant, switched, needs_finite=kernel.needs_finite)


def offered_precisions(capability: tuple[int, int]) -> tuple[str, ...]:
    """Precisions of a compute capability: TF32 and BF16 came with Ampere."""
    return (FP32, TF32, *HALF) if capability >= (8, 0) else (FP32, "fp16")


def pin_fp32() -> None:
    """Multiply FP32 in FP32, sum half types in FP32, and let cuDNN try its algorithms.

    The switches are the process's. They count when a kernel is launched or captured: a replayed
    graph keeps what it was captured with.
    """
    _set_tf32(False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = True
    keep = getattr(
        torch._C, "_cudnn_set_conv_benchmark_empty_cache", None
    )  # builds for CUDA have it
    if keep is not None:
        keep(False)  # else the allocator gives all it has cached back after each trial


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """Let FP32 operands be rounded to TF32's 10 bits in the body."""
    _set_tf32(True)
    try:
        yield
    finally:
        _set_tf32(False)


def _set_tf32(allowed: bool) -> None:
    """Set TF32 by the older switches, which set the newer ones, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions announce that the older ones will go
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.backends.cudnn.allow_tf32 = allowed
