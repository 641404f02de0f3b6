"""A template of FP16 or BF16 on FP32: rounded at its end, not after each operator.

    x FP16 ─> conv ─> relu ─> y FP16          x ─> cast ─> conv ─> relu ─> cast ─> y
                                              FP16    FP32    FP32    FP32    FP16

CPUs have no arithmetic on 16-bit floats, or little; other runtimes cast around each operator. The
model's inputs and outputs keep their types. Casts between floats inside the graph are gone. Kinds
that make something else of a float than a float, or round it to a whole number, still read what
the file's type holds: their results would not follow a small difference.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from braid.core.graph import Branch, Operator, OpGraph
from braid.core.precision import HALF
from braid.core.tensor import DTYPE_BYTES
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.passes.body import Weights, all_operators, rebuilt, with_constants
from braid.engine.passes.precision import WIDE

NARROW = (*HALF.values(),)

_CAST, _IDENTITY = "braid.cast", "braid.identity"
_DISCRETE = frozenset(
    {
        *("aten.eq", "aten.lt", "aten.le", "aten.gt", "aten.ge", "aten.sign"),
        *("aten.floor", "aten.ceil", "aten.round", "aten.remainder", "aten.fmod"),
        *("braid.argmax", "braid.argmin", "braid.topk", "braid.nonzero", "braid.bit_cast"),
    }
)


def narrow_type(template: OpGraph, weights: Weights) -> str:
    """FP16 or BF16, of both the coarser; weights that are cast before use do not count."""
    types = value_types(template, weights)
    dtypes = {types.get(value, "") for value in template.outputs.values()}
    for operator in all_operators(template.operators):
        if operator.kind not in (_CAST, _IDENTITY):
            dtypes.update(types[name] for name in operator.outputs)
    return next((dtype for dtype in reversed(NARROW) if dtype in dtypes), "")


def widen(template: OpGraph, weights: Weights) -> tuple[OpGraph, dict[str, Tensor]]:
    """Return a template, and its constants, that computes in FP32 what is FP16 or BF16."""
    return _Widening(template, weights).result()


class _Widening:
    """State of one rewrite. A value that was narrow has its name in FP32, an input a new one."""

    def __init__(self, template: OpGraph, weights: Weights) -> None:
        self._template = template
        self._types = value_types(template, weights)
        self._weights = dict(weights)
        self._narrow_weights: dict[str, Tensor] = {}
        self._wide: dict[str, str] = {}  # input -> its name in FP32
        self._taken = {*self._types, *(op.name for op in all_operators(template.operators))}
        for name, tensor in weights.items():
            if self._is_narrow(name):
                self._weights[name], self._narrow_weights[name] = tensor.float(), tensor

    def result(self) -> tuple[OpGraph, dict[str, Tensor]]:
        operators: list[Operator] = []
        narrow: dict[str, str] = {}  # value -> its name in its own type
        for name in self._template.inputs:
            if self._is_narrow(name):
                self._wide[name] = self._new(f"{name}:{WIDE}")
                narrow[name] = name
                operators.append(self._cast(name, self._wide[name], WIDE))
        self._take(self._template.operators, operators, narrow)
        outputs = {
            name: self._narrow(value, operators, narrow) if self._is_narrow(value) else value
            for name, value in self._template.outputs.items()
        }
        graph = dataclasses.replace(self._template, outputs=outputs)
        return with_constants(rebuilt(graph, operators, {}), self._weights)

    def _take(
        self, operators: Iterable[Operator], to: list[Operator], narrow: dict[str, str]
    ) -> None:
        for operator in operators:
            if self._stays_narrow(operator):
                self._keep(operator, to, narrow)
            else:
                to.append(self._widened(operator, narrow))

    def _stays_narrow(self, operator: Operator) -> bool:
        reads = any(map(self._is_narrow, operator.inputs))
        if operator.kind == _CAST:
            return reads and not torch_dtype(str(operator.attributes["dtype"])).is_floating_point
        return operator.kind in _DISCRETE and (reads or any(map(self._is_narrow, operator.outputs)))

    def _keep(self, operator: Operator, to: list[Operator], narrow: dict[str, str]) -> None:
        """Add an operator on the file's own types, and casts of what it makes."""
        inputs = tuple(
            self._narrow(name, to, narrow) if self._is_narrow(name) else name
            for name in operator.inputs
        )
        narrowed = [name for name in operator.outputs if self._is_narrow(name)]
        narrow.update({name: self._new(f"{name}:{self._types[name]}") for name in narrowed})
        outputs = tuple(narrow[name] if name in narrowed else name for name in operator.outputs)
        to.append(
            dataclasses.replace(operator, inputs=inputs, outputs=outputs, host=self._host(operator))
        )
        to += [self._cast(narrow[name], name, WIDE) for name in narrowed]

    def _widened(self, operator: Operator, narrow: dict[str, str]) -> Operator:
        attributes = {
            key: WIDE if value in NARROW else value for key, value in operator.attributes.items()
        }
        inputs = tuple(self._wide.get(name, name) for name in operator.inputs)
        is_widest = operator.kind == _CAST and attributes["dtype"] == WIDE
        if is_widest and self._types[operator.inputs[0]] in (*NARROW, WIDE):
            return Operator(operator.name, _IDENTITY, inputs, operator.outputs)
        branches = tuple(self._branch(branch, dict(narrow)) for branch in operator.branches)
        host = self._host(operator)
        return dataclasses.replace(
            operator, inputs=inputs, attributes=attributes, host=host, branches=branches
        )

    def _branch(self, branch: Branch, narrow: dict[str, str]) -> Branch:
        operators: list[Operator] = []
        self._take(branch.operators, operators, narrow)
        return Branch(
            tuple(operators), tuple(self._wide.get(name, name) for name in branch.outputs)
        )

    def _host(self, operator: Operator) -> Mapping[str, str]:
        return {key: self._wide.get(name, name) for key, name in operator.host.items()}

    def _narrow(self, value: str, to: list[Operator], narrow: dict[str, str]) -> str:
        """Name of a value in the file's type; the cast is written at the first use."""
        if value not in narrow:
            dtype = self._types[value]
            narrow[value] = name = self._new(f"{value}:{dtype}")
            if value in self._narrow_weights:
                self._weights[name] = self._narrow_weights[value]
            else:
                to.append(self._cast(value, name, dtype))
        return narrow[value]

    def _cast(self, value: str, name: str, dtype: str) -> Operator:
        return Operator(self._new(f"{name}/cast"), _CAST, (value,), (name,), {"dtype": dtype})

    def _new(self, wish: str) -> str:
        while wish in self._taken:
            wish += "~"
        self._taken.add(wish)
        return wish

    def _is_narrow(self, value: str) -> bool:
        return self._types.get(value, "") in NARROW


_FIXED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((f"aten.{name}" for name in ("eq", "lt", "le", "gt", "ge")), ("BOOL",)),
    **dict.fromkeys((f"aten.logical_{name}" for name in ("and", "or", "xor", "not")), ("BOOL",)),
    **dict.fromkeys(("aten.isnan", "braid.isinf"), ("BOOL",)),
    **dict.fromkeys(("braid.shape", "braid.size", "braid.nonzero"), ("INT64",)),
    **dict.fromkeys(("braid.argmax", "braid.argmin"), ("INT64",)),
    **dict.fromkeys(("braid.matmul_integer", "braid.convolution_integer"), ("INT32",)),
    "braid.topk": ("", "INT64"),
}
"""Types of the outputs of kinds that do not follow an operand; empty: this output does."""

_FOLLOWED: Mapping[str, int] = {
    **dict.fromkeys(("braid.cast_like", "aten.where", "braid.one_hot", "braid.dequantise"), 1),
    "braid.quantise": 2,
}
"""Operand whose type the outputs have; of other kinds the first of floats."""


def value_types(template: OpGraph, weights: Weights) -> dict[str, str]:
    """Element type of each value, branches included; empty where it is not known."""
    types = {name: spec.dtype for name, spec in {**template.inputs, **template.constants}.items()}
    scalars = {name for name, tensor in weights.items() if tensor.dim() == 0}
    _visit(template.operators, types, scalars)
    return types


def _visit(operators: Iterable[Operator], types: dict[str, str], scalars: set[str]) -> None:
    for operator in operators:
        for branch in operator.branches:
            _visit(branch.operators, types, scalars)
        if operator.branches:
            results: Sequence[str] = [types.get(name, "") for name in operator.branches[0].outputs]
        else:
            results = _results(operator, types, scalars)
        types.update(zip(operator.outputs, results, strict=False))


def _results(operator: Operator, types: Mapping[str, str], scalars: set[str]) -> list[str]:
    named = operator.attributes.get("dtype")
    follows = named if isinstance(named, str) and named in DTYPE_BYTES else ""
    if not follows:
        place = _FOLLOWED.get(operator.kind, -1)
        read = [operator.inputs[place]] if 0 <= place < len(operator.inputs) else operator.inputs
        tensors = [name for name in read if name and name not in scalars]  # as torch promotes
        follows = next((types.get(name, "") for name in (*tensors, *read) if name), "")
    fixed = _FIXED.get(operator.kind, ())
    return [
        (fixed[at] if at < len(fixed) else "") or follows for at in range(len(operator.outputs))
    ]
