"""Rules that rewrite operators, and the patterns by which rules find them.

    rule(Op("aten.mul", X, Op("aten.sigmoid", X)), becomes("aten.silu", "x"))

    mul ──> X                     a pattern is a tree of the operators behind a value
     └────> sigmoid ──> X         a name stands for one value, wherever it occurs

Nothing else reads the operators inside a pattern: they are dead once its root is rewritten. A
pattern says nothing of operands and attributes that it does not name, except that no operator in
it has an epilogue. Operands of sums and products are tried in both orders.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

from torch import Tensor

from braid.core.graph import Literal, Operator, OpGraph
from braid.engine.ops.kinds import EPILOGUE
from braid.engine.passes.body import Body, Weights, everywhere, live, ranks, rebuilt

_COMMUTATIVE = frozenset({"aten.add", "aten.mul"})


class Upstream:
    """Operators before the one that a rule looks at, as rewritten so far."""

    def __init__(self, body: Body, weights: dict[str, Tensor]) -> None:
        self._body = body
        self.is_top = body.top  # not a branch
        self.weights = weights  # rules may enter new ones
        self.reads = body.reads()  # before any rewrite
        self.makers: dict[str, Operator] = {}  # by value
        self.operators: dict[str, Operator] = {}  # by name, in order
        self._ancestors: dict[str, int] = {}  # by name: bits of places, the operator's included

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        return ranks(self._body, self.weights)

    def put(self, op: Operator) -> None:
        self.operators[op.name] = op
        self.makers.update(dict.fromkeys(op.outputs, op))

    def only_read(self, value: str, *kinds: str) -> Operator | None:
        op = self.makers.get(value) if self.reads[value] == 1 else None
        return op if op is not None and (not kinds or op.kind in kinds) else None

    def is_ready(self, value: str, root: Operator) -> bool:
        """Whether a value is computed before operator ``root`` could start anyway."""
        for place, op in islice(enumerate(self.operators.values()), len(self._ancestors), None):
            self._ancestors[op.name] = 1 << place
            for above in filter(None, map(self.makers.get, op.inputs)):
                self._ancestors[op.name] |= self._ancestors[above.name]
        maker = self.makers.get(value)
        return maker is None or (
            maker is not root and not self._ancestors[maker.name] & ~self._ancestors[root.name]
        )


Rule = Callable[[Operator, Upstream], Operator | None]
"""Returns what replaces an operator, or None. A replacement that has the name of an operator before
takes its place; otherwise it has the operator's name."""


def rewrite(graph: OpGraph, weights: Weights, *rules: Rule) -> tuple[OpGraph, Weights]:
    """Apply to each operator, in order, the first of the rules that fits it, branches included."""

    def rewritten(body: Body, pool: dict[str, Tensor]) -> Body:
        return dataclasses.replace(body, operators=_rewritten(body, pool, rules))

    return everywhere(rewritten, graph, weights)


def rewrite_static(graph: OpGraph, constants: Weights, *rules: Rule) -> OpGraph:
    """Apply rules to a static graph, and drop the operators that are dead then."""
    body = Body(graph.operators, tuple(graph.outputs.values()), ranks={}, top=True)
    return rebuilt(graph, live(_rewritten(body, dict(constants), rules), body.results))


def _rewritten(
    body: Body, weights: dict[str, Tensor], rules: tuple[Rule, ...]
) -> tuple[Operator, ...]:
    upstream = Upstream(body, weights)
    for op in body.operators:
        upstream.makers[op.outputs[0]] = op
        results = (rule(op, upstream) for rule in rules)
        upstream.put(next(filter(None, results), op))
    return tuple(upstream.operators.values())


Captures = Mapping[str, str]  # name in a pattern -> its value; "" for what has no name

Pattern = Callable[[str, Upstream, Captures], Iterator[Captures]]
"""Yields the captures with which a value fits: those given, of which the root of a rule has none,
and the pattern's own."""


def value(name: str) -> Pattern:
    def match(value: str, upstream: Upstream, captures: Captures) -> Iterator[Captures]:
        if captures.get(name, value) == value:
            yield {**captures, name: value}

    return match


def constant(name: str, test: Callable[[Tensor], bool]) -> Pattern:
    def match(value: str, upstream: Upstream, captures: Captures) -> Iterator[Captures]:
        tensor = upstream.weights.get(value)
        if tensor is not None and tensor.is_floating_point() and test(tensor):
            yield {**captures, name: value}

    return match


def number(wanted: float | Callable[[float], bool], name: str = "") -> Pattern:
    return constant(name, lambda t: t.numel() == 1 and t.dim() < 2 and fits(t.item(), wanted))


def fits(literal: Any, wanted: Any) -> bool:
    return bool(wanted(literal)) if callable(wanted) else bool(literal == wanted)


def either(*patterns: Pattern) -> Pattern:
    return lambda *given: chain.from_iterable(pattern(*given) for pattern in patterns)


class Op:
    """An operator of a kind, with patterns of its first operands, and some of its attributes."""

    def __init__(
        self,
        kind: str,
        *operands: Pattern,
        name: str = "",
        readers: int = 1,
        **attributes: Literal | Callable[[Any], bool],
    ) -> None:
        self._kind, self._name, self._readers = kind, name, readers
        self._operands, self._attributes = operands, attributes

    def __call__(self, value: str, upstream: Upstream, captures: Captures) -> Iterator[Captures]:
        op = upstream.makers.get(value)
        if op is None or op.kind != self._kind or EPILOGUE in op.attributes:
            return
        if captures and upstream.reads[value] != self._readers:
            return
        if all(fits(op.attributes.get(key), wanted) for key, wanted in self._attributes.items()):
            named = {**captures, self._name: value}
            orders = (op.inputs, op.inputs[::-1]) if op.kind in _COMMUTATIVE else (op.inputs,)
            for values in orders:
                yield from match_all(self._operands, values, upstream, named)


def match_all(
    patterns: Sequence[Pattern], values: Sequence[str], upstream: Upstream, captures: Captures
) -> Iterator[Captures]:
    if not patterns:
        yield captures
    elif values:
        for more in patterns[0](values[0], upstream, captures):
            yield from match_all(patterns[1:], values[1:], upstream, more)


Build = Callable[[Operator, Captures, Upstream], Operator | None]


def rule(root: Pattern, build: Build) -> Rule:
    def apply(op: Operator, upstream: Upstream) -> Operator | None:
        built = (build(op, captures, upstream) for captures in root(op.outputs[0], upstream, {}))
        return next(filter(None, built), None)

    return apply


def becomes(kind: str, *names: str, **attributes: Literal) -> Build:
    """Build an operator of ``kind`` that reads the captures of these names; "" reads nothing."""

    def build(op: Operator, captures: Captures, _: Upstream) -> Operator:
        inputs = tuple(captures[name] if name else "" for name in names)
        return dataclasses.replace(op, kind=kind, inputs=inputs, attributes=attributes)

    return build
