"""A static graph on narrower data: FP16 or BF16 where that is safe, FP32 elsewhere.

    x FP32 ─> conv ─> relu ─> exp ─> y FP32       x ─> cast ─> conv ─> relu ─> cast ─> exp ─> y
                                                       FP32    FP16    FP16            FP32   FP32

    narrow kinds    matrix products, convolutions, what is elementwise and stays in range, and
                    normalisations, whose kernels sum in FP32 inside
    following       views: in the type of what they view
    all others      FP32: sums, powers, exponentials, whatever this table does not know

The graph's inputs and outputs keep their types. Casts are units like others: they are launched,
scheduled and measured. Constants are cast here, once for all plans of a model.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import Operator, OpGraph
from braid.core.precision import HALF
from braid.core.tensor import TensorType
from braid.engine.ops.dtypes import spec_of, torch_dtype
from braid.engine.ops.evaluation import attempt
from braid.engine.ops.families.attention import ATTENTION, ROTATE
from braid.engine.ops.kinds import EPILOGUE, WEIGHTED_SUM, epilogue_steps
from braid.engine.passes.body import fresh, rebuilt, with_constants

WIDE = "FP32"

_POINTWISE = frozenset(
    {
        *("aten.relu", "aten.sigmoid", "aten.tanh", "aten.silu", "aten.gelu", "aten.hardswish"),
        *("aten.leaky_relu", "aten.elu", "aten.celu", "aten.mish", "aten.clamp"),
        *("aten.abs", "aten.neg", "aten.erf", "braid.hardsigmoid", "braid.affine", "braid.selu"),
    }
)
_NARROW = _POINTWISE | {
    *("aten.convolution", "braid.convolution_add", "braid.conv_transpose_to"),
    *("aten.linear", "braid.linear_add", "aten.matmul"),
    *("braid.attention", ATTENTION, "aten.softmax"),
    ROTATE,
    *("aten.add", "aten.sub", "aten.mul", "aten.div", "aten.maximum", "aten.minimum"),
    *(WEIGHTED_SUM, "aten.where", "braid.prelu", "aten.cat", "braid.pad"),
    *("braid.max_pool", "braid.avg_pool", "aten.mean"),
    *("braid.global_avg_pool", "braid.global_max_pool"),
    *("aten.batch_norm", "aten.layer_norm", "braid.rms_norm"),
    *("braid.group_norm", "braid.instance_norm"),
}
FOLLOWING = frozenset(
    {
        *("braid.reshape", "braid.flatten", "braid.squeeze", "braid.unsqueeze", "braid.slice"),
        *("braid.split", "braid.expand", "braid.tile", "braid.gather", "braid.identity"),
        *("braid.depth_to_space", "braid.space_to_depth", "aten.permute", "aten.select"),
    }
)
_CANCELLING = frozenset({"aten.sub"})  # of two FP32 values in FP32: what is left may be small
_FIRST_ONLY = frozenset({"aten.batch_norm"})  # stored statistics stay FP32


class DerivedConstants(Protocol):
    """Store of tensors derived from constants, for all plans of a model (``PackedWeights``)."""

    def derived(
        self, key: tuple[Any, ...], source: Tensor, make: Callable[[], Tensor]
    ) -> Tensor: ...


def in_precision(
    graph: OpGraph, constants: Mapping[str, Tensor], precision: str, packed: DerivedConstants
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The graph computing in ``precision``, and its constants; those on FP32 data change nothing.

    Residual sums are fused already; ``packed`` keeps the constants that were cast. Cost: a run on
    meta tensors per narrow unit, and a cast of each constant the first time.
    """
    if precision not in HALF:
        return graph, dict(constants)
    narrowing = _Narrowing(graph, constants, HALF[precision], packed)
    for operator in graph.operators:
        narrowing.take(operator)
    return narrowing.result()


class _Narrowing:
    """State of one rewrite: the units so far, and the types that each FP32 value exists in."""

    def __init__(
        self, graph: OpGraph, constants: Mapping[str, Tensor], narrow: str, packed: DerivedConstants
    ) -> None:
        self._graph = graph
        self._constants = dict(constants)
        self._narrow = narrow
        self._packed = packed
        self._operators: list[Operator] = []
        self._specs: dict[str, TensorType] = {**graph.inputs, **graph.constants}
        self._forms: dict[tuple[str, str], str] = {}  # value, dtype -> its name in that type
        self._taken = {*self._specs, *graph.specs, *(op.name for op in graph.operators)}

    def take(self, operator: Operator) -> None:
        """Add a unit, on narrow data if its kind allows and its results come out narrow."""
        wide = [self._graph.spec(name) for name in operator.outputs]
        dtypes = self._wanted(operator)
        results = self._results(operator, dtypes) if self._narrow in dtypes else None
        if results is None:
            dtypes, results = [WIDE] * len(dtypes), wide
        inputs = tuple(map(self._form, operator.inputs, dtypes))
        self._operators.append(dataclasses.replace(operator, inputs=inputs))
        self._specs.update(zip(operator.outputs, results, strict=True))

    def _wanted(self, operator: Operator) -> list[str]:
        """The type in which the unit should read each of its FP32 operands."""
        first, count = (*operator.inputs, "")[0], len(operator.inputs)
        epilogue = epilogue_steps(operator.attributes.get(EPILOGUE))
        if any(step.kind not in _POINTWISE for step, _ in epilogue):
            return [WIDE] * count
        if operator.kind in _FIRST_ONLY:
            return [self._narrow, *[WIDE] * (count - 1)]
        if operator.kind in FOLLOWING and first:
            follows = first in self._constants or self._is_narrow(first)
            return [self._narrow if follows else WIDE] * count
        if operator.kind in _CANCELLING and not any(map(self._is_narrow, operator.inputs)):
            return [WIDE] * count
        return [self._narrow if operator.kind in _NARROW else WIDE] * count

    def _results(self, operator: Operator, dtypes: list[str]) -> list[TensorType] | None:
        """Specs of the outputs, tried on meta tensors; None where an FP32 one stays FP32."""
        operands = [
            self._meta(name, dtype) if name else None
            for name, dtype in zip(operator.inputs, dtypes, strict=True)
        ]
        try:
            results = attempt(operator, operands)
        except InvalidRequest:
            return None
        specs = [spec_of(tensor) for tensor in results[: len(operator.outputs)]]
        wide = [self._is_wide(name) for name in operator.outputs]
        narrowed = [spec.dtype == self._narrow for spec in specs]
        return specs if any(wide) and wide == narrowed else None

    def _is_wide(self, value: str) -> bool:
        return self._graph.spec(value).dtype == WIDE

    def _is_narrow(self, value: str) -> bool:
        return bool(value) and self._specs[value].dtype == self._narrow

    def _meta(self, value: str, dtype: str) -> Tensor:
        spec = self._graph.spec(value)
        kind = dtype if spec.dtype == WIDE else spec.dtype
        shape = [int(extent) for extent in spec.shape]
        return torch.empty(shape, dtype=torch_dtype(kind), device="meta")

    def _form(self, value: str, dtype: str) -> str:
        """Name of a value in an element type; the cast is written at the first use."""
        if not value or not self._is_wide(value) or self._specs[value].dtype == dtype:
            return value
        if (value, dtype) not in self._forms:
            self._forms[value, dtype] = self._cast(value, dtype)
        return self._forms[value, dtype]

    def _cast(self, value: str, dtype: str) -> str:
        name = fresh(f"{value}:{dtype}", self._taken)
        self._taken.add(name)
        self._specs[name] = TensorType(dtype, self._specs[value].shape)
        if value in self._constants:
            source, kind = self._constants[value], torch_dtype(dtype)
            self._constants[name] = self._packed.derived(
                ("cast", value, dtype), source, lambda: _narrowed(source, kind)
            )
        else:
            self._operators.append(
                Operator(name, "braid.cast", (value,), (name,), {"dtype": dtype})
            )
        return name

    def result(self) -> tuple[OpGraph, dict[str, Tensor]]:
        """The graph with its outputs in their own types, and the constants it still reads."""
        outputs = {
            name: self._form(value, self._graph.spec(value).dtype)
            for name, value in self._graph.outputs.items()
        }
        graph = dataclasses.replace(self._graph, outputs=outputs)
        return with_constants(rebuilt(graph, self._operators, self._specs), self._constants)


def _narrowed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Round a tensor; large finite numbers stay finite, since masks multiply -1e38 by 0."""
    limits = torch.finfo(dtype)
    finite = tensor.clamp(limits.min, limits.max)
    return torch.where(tensor.isinf(), tensor, finite).to(dtype)
