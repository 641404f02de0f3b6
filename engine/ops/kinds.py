"""Table of operator kinds: what each one computes, and what passes may assume about it.

    graph operator ──kind──> OpDef.bound(attributes)(*tensors) ──> tensors

``aten.*`` kinds do what torch's operator of that name does; ``braid.*`` kinds follow ONNX where
it differs. A ``run`` works alike on CPU, CUDA and meta tensors (how shapes are found), gives fresh
tensors or views, and never writes to its inputs. Attributes are JSON literals.

Asked by the lowerings, the passes, ``braid.engine.passes.specialise`` and the executors. The
families fill the table when ``braid.engine.ops`` is imported, which Python does before it imports
this module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from braid.core.errors import InvalidArtefact
from braid.core.graph import Literal, Operator
from braid.engine.ops.value_ranges import Values, refuse_values

Tensor = torch.Tensor
Run = Callable[..., Tensor | tuple[Tensor, ...]]
_RunT = TypeVar("_RunT", bound=Run)

WITH_SUM = {"aten.convolution": "braid.convolution_add", "aten.linear": "braid.linear_add"}
"""Kinds that add a tensor of the output's shape to the result, by the kinds that do not."""

WEIGHTED_SUM = "braid.weighted_sum"  # operands, each times one of the numbers ``weights``

EPILOGUE = "epilogue"  # unary kinds applied in order to output 0


@dataclass(frozen=True, slots=True)
class OpDef:
    """Definition of one kind: its function and flags."""

    kind: str
    run: Run  # (*inputs, None where absent, **attributes or records of them)
    pointwise: bool = False  # unary, elementwise, shape kept: may become an epilogue
    shape_only: bool = False  # reads only the shape of its input; answers on the CPU
    values: Values | None = None  # that it takes, where it cannot use all
    fails: bool = False  # when it meets other values, so that they are looked for only then
    as_filed: bool = False  # computes in the types of its operands, 16-bit floats too
    records: Mapping[str, type] = field(default_factory=dict)  # parameter of run -> dataclass

    def bound(self, attributes: Mapping[str, Any]) -> Run:
        """``run`` with attributes, some gathered in records; ``TypeError`` if one lacks."""
        given, rest = {}, dict(attributes)
        for parameter, record in self.records.items():
            names = [entry.name for entry in fields(record) if entry.name in rest]
            given[parameter] = record(**{name: rest.pop(name) for name in names})
        return partial(self.run, **given, **rest) if given or rest else self.run


_OPS: dict[str, OpDef] = {}
OPS: Mapping[str, OpDef] = MappingProxyType(_OPS)


def operator(
    kind: str,
    *,
    pointwise: bool = False,
    shape_only: bool = False,
    values: Values | None = None,
    fails: bool = False,
    as_filed: bool = False,
    **records: type,
) -> Callable[[_RunT], _RunT]:
    """``records``: parameters that are dataclasses, made of the attributes named as fields."""

    def enter(run: _RunT) -> _RunT:
        assert kind not in _OPS, f"{kind} is defined twice"
        _OPS[kind] = OpDef(kind, run, pointwise, shape_only, values, fails, as_filed, records)
        return run

    return enter


def op(kind: str) -> OpDef:
    """Raises ``InvalidArtefact`` if this version of the engine has no such kind."""
    try:
        return _OPS[kind]
    except KeyError:
        raise InvalidArtefact(
            f"no operator kind {kind!r} in this version; register the model again"
        ) from None


def epilogue_steps(literal: Literal) -> list[tuple[OpDef, dict[str, Any]]]:
    """Pointwise kinds with their attributes, else ``InvalidArtefact``."""
    steps = []
    for entry in literal if isinstance(literal, list) else []:
        if not isinstance(entry, list) or not entry or len(entry) % 2 == 0:
            raise InvalidArtefact(f"not an epilogue step: {str(entry)[:100]}")
        kind, *rest = entry
        definition = op(str(kind))
        if not definition.pointwise:
            raise InvalidArtefact(f"{kind} is not pointwise: it cannot be an epilogue")
        steps.append((definition, dict(zip(map(str, rest[::2]), rest[1::2], strict=True))))
    return steps


def bound(operator: Operator) -> Run:
    """One operator of a static graph as a function of its operands, epilogue included.

    It gives a tensor or a tuple. It raises InvalidRequest for values of its operands that the
    operator cannot use, as far as these are on the CPU.
    """
    attributes = dict(operator.attributes)
    epilogue = epilogue_steps(attributes.pop(EPILOGUE, None))
    definition = op(operator.kind)
    run = definition.bound(attributes)
    if definition.values is not None:
        run = _refusing(operator, definition.values, run, late=definition.fails)
    if not epilogue:
        return run
    steps = [definition.bound(arguments) for definition, arguments in epilogue]

    def fused(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        result = run(*inputs)
        first, *others = (result,) if isinstance(result, Tensor) else result
        for step in steps:
            result = step(first)
            assert isinstance(result, Tensor), "an epilogue is unary"
            first = result
        return (first, *others)

    return fused


def _refusing(operator: Operator, values: Values, run: Run, *, late: bool) -> Run:
    """Return ``run`` with a look at the values before it, or ``late``, only if it fails."""

    def refusing(*inputs: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        if not late:
            refuse_values(operator, values, inputs)
            return run(*inputs)
        try:
            return run(*inputs)
        except (RuntimeError, IndexError, ArithmeticError):  # torch raises any of them
            refuse_values(operator, values, inputs)
            raise

    return refusing


def call(operator: Operator, inputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Run an operator of a static graph, without host operands or branches; ``""`` takes None."""
    outputs = bound(operator)(*inputs)
    return (outputs,) if isinstance(outputs, Tensor) else outputs
