"""Units compiled by TorchInductor: the epilogue in one kernel with what comes before it.

    unit ──make_fx──> aten graph ──standalone_compile──> function of tensors, on the current stream

Inductor fuses within a unit; between units the plan decides, so that its kernels run side by side
and inside our captures. Its own CUDA graphs are off. Compiling takes seconds: it happens at the
first run, in memory formats that are the same at each run, and Inductor keeps the result on disk.
Units of one signature share what is compiled; the weights of a sum are an operand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from braid.core.graph import WEIGHTS, Operator
from braid.engine.ops.kinds import EPILOGUE, call, epilogue_steps
from braid.engine.program.kernel import Kernel

Compiled = Callable[..., Sequence[Tensor]]
Compile = Callable[[Operator, Sequence[Tensor | None]], Compiled]


@dataclass(eq=False, slots=True, weakref_slot=True)
class SharedCode:
    """What units of one signature run, once the first of them compiled it."""

    compiled: Compiled | None = None


_OPTIONS = {"triton.cudagraphs": False, "layout_optimization": False}

_PLAIN = frozenset(
    {
        *("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum"),
        *("aten.relu", "aten.sigmoid", "aten.tanh", "aten.silu", "aten.exp", "aten.sqrt"),
        *("aten.matmul", "aten.cat", "aten.permute"),
        *("aten.softmax", "aten.layer_norm", "aten.mean", "aten.sum"),
        *("aten.batch_norm", "aten.select"),
    }
)
"""Kinds that are one kernel already: nothing to fuse, unless there is an epilogue."""

_VIEWS = frozenset(
    {
        *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze", "braid.slice"),
        *("braid.split", "braid.expand", "braid.identity", "braid.cast"),
        *("braid.max_pool", "braid.avg_pool", "braid.global_avg_pool"),
    }
)
"""Views, and pooling of images, where torch's kernels are at par."""

_UNFIT = frozenset({"braid.onnxruntime", "braid.recurrent"})  # Inductor only calls them


_FUSED_BEFORE_RELU = frozenset({"aten.convolution", "braid.convolution_add", "aten.linear"})
"""Kinds that cuDNN and cuBLASLt run in one kernel, with nothing or a ReLU after them."""


def is_worth_compiling(unit: Operator) -> bool:
    """Whether kernels could be fewer that no library fuses: a compilation takes seconds."""
    if unit.kind in _UNFIT or not any(unit.inputs):
        return False
    steps = {definition.kind for definition, _ in epilogue_steps(unit.attributes.get(EPILOGUE))}
    if unit.kind in _FUSED_BEFORE_RELU:
        return not steps <= {"aten.relu"}
    return bool(steps) or unit.kind not in _PLAIN | _VIEWS


def compile_unit(unit: Operator, operands: Sequence[Tensor | None]) -> Compiled:
    """Compile for the types, shapes, strides and device of ``operands``; None is left out.

    Weights that a unit has as an attribute are its last operand.
    """
    # Seconds of imports, which only those need who compile.
    from torch._inductor import standalone_compile
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [operand for operand in operands if operand is not None]

    def function(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        values = [None if operand is None else next(rest) for operand in operands]
        attributes: dict[str, Any] = dict(unit.attributes)
        if WEIGHTS in attributes:
            attributes[WEIGHTS] = values.pop()
        return list(call(replace(unit, attributes=attributes), values))

    with torch.no_grad():
        traced = make_fx(function, tracing_mode="fake")(*given)
        compiled: Compiled = standalone_compile(
            traced,
            list[Any](given),
            dynamic_shapes="from_example_inputs",
            options={"config_patches": _OPTIONS},
        )
    return compiled


def compiled_kernel(
    unit: Operator,
    layout: str,
    memory_format: torch.memory_format,
    compile_: Compile = compile_unit,
    shared: SharedCode | None = None,
) -> Kernel:
    """The first run compiles; units of one signature have one ``shared``."""
    code = shared or SharedCode()
    weights = unit.attributes.get(WEIGHTS)
    placed: list[Tensor] = []

    def laid_out(operand: Tensor | None) -> Tensor | None:
        if operand is None:
            return None
        images = memory_format if operand.dim() == 4 else torch.contiguous_format
        return operand.contiguous(memory_format=images)

    def run(*inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        operands = [laid_out(operand) for operand in inputs]
        if weights is not None:
            if not placed:
                first = operands[0]
                assert first is not None, "a sum has terms"
                placed.append(torch.tensor(weights, device=first.device))
            operands += placed
        if code.compiled is None:
            code.compiled = compile_(unit, operands)
        return tuple(code.compiled(*(operand for operand in operands if operand is not None)))

    return Kernel(f"inductor.{layout}", run)
