"""Which epilogues oneDNN fuses into the pass that makes the data."""

from collections.abc import Callable, Mapping
from math import inf

from braid.core.graph import Literal, Operator
from braid.engine.onednn.library import PostOp
from braid.engine.ops.kinds import EPILOGUE, epilogue_steps

Arguments = Mapping[str, object]
Reader = Callable[[Arguments], PostOp | None]


def _plain(name: str, alpha: float = 0.0, beta: float = 0.0) -> Reader:
    return lambda given: None if given else (name, alpha, beta)


def _numbers(name: str, *wanted: str) -> Reader:
    def read(given: Arguments) -> PostOp | None:
        values = [given.get(key) for key in wanted]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if set(given) != set(wanted) or len(numbers) != len(wanted):
            return None
        return name, numbers[0], numbers[1] if len(numbers) > 1 else 0.0

    return read


def _clamp(given: Arguments) -> PostOp | None:
    low, high = given.get("min"), given.get("max")
    low, high = -inf if low is None else low, inf if high is None else high
    return _numbers("clip", "min", "max")({"min": low, "max": high})


def _power(given: Arguments) -> PostOp | None:
    exponent = given.get("value")
    if set(given) != {"value"} or not isinstance(exponent, int | float):
        return None
    return {2: ("square", 0.0, 0.0), 0.5: ("sqrt", 0.0, 0.0)}.get(exponent, ("pow", 1.0, exponent))


def _gelu(given: Arguments) -> PostOp | None:
    exact = given.get("approximate", "none") == "none"
    return ("gelu_erf" if exact else "gelu_tanh"), 0.0, 0.0


_POST_OPS: Mapping[str, Reader] = {
    "aten.relu": _plain("relu"),
    "aten.sigmoid": _plain("logistic"),
    "aten.tanh": _plain("tanh"),
    "aten.silu": _plain("swish", 1.0),
    "aten.hardswish": _plain("hardswish", 1 / 6, 0.5),
    "aten.gelu": _gelu,
    "aten.clamp": _clamp,
    "aten.leaky_relu": _numbers("relu", "negative_slope"),
    "braid.hardsigmoid": _numbers("hardsigmoid", "alpha", "beta"),
    "braid.affine": _numbers("linear", "scale", "shift"),
    "aten.neg": _plain("linear", -1.0),
    "aten.abs": _plain("abs"),
    "aten.sqrt": _plain("sqrt"),
    "aten.exp": _plain("exp"),
    "aten.rsqrt": _plain("pow", 1.0, -0.5),
    "aten.reciprocal": _plain("pow", 1.0, -1.0),
    "aten.elu": _numbers("elu", "alpha"),
    "braid.pow": _power,
}


POINTWISE = frozenset(_POST_OPS)
"""Kinds with a oneDNN function, for some or all of their attributes.

Not its logarithm and softplus, which err by 4e-6 and 8e-6 near 0."""


def post_op(kind: str, attributes: Arguments) -> PostOp | None:
    read = _POST_OPS.get(kind)
    return None if read is None else read(attributes)


def post_ops(unit: Operator) -> list[PostOp] | None:
    return steps_of(unit.attributes.get(EPILOGUE))


def steps_of(literal: Literal) -> list[PostOp] | None:
    steps = []
    for definition, given in epilogue_steps(literal):
        step = post_op(definition.kind, given)
        if step is None:
            return None
        steps.append(step)
    return steps
