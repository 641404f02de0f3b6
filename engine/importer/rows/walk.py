"""Walk over a model in two batches, to show that no row depends on another or on its place.

    the model with 6 rows ─┐
    the model with 7 rows ─┴─> each operator by its rule (rules.py) ──> batch axis of each output
                                          └─> RowsMeet: the operator that may combine rows

Runs cannot show this: a rule that begins at a loud sample, a NaN or a larger batch is not met by
random numbers. The number of rows is a number to a model, too. What is computed from it has to be
affine in it, so equal numbers in two consecutive batches are equal in all batches. It may decide
shapes and nothing else.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from braid.core.graph import Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.rows.facts import (
    EXTENTS,
    SAME,
    Fact,
    Places,
    Rows,
    RowsMeet,
    Shape,
    Site,
)
from braid.engine.importer.rows.rules import RULES, TAKES_PLACES, only_axis
from braid.engine.ops.kinds import EPILOGUE, OPS
from braid.engine.passes.specialise import Trace, trace

BATCHES = 6, 7  # consecutive: a quotient that is whole in both is whole in all

Contents = Sequence[Tensor]  # of an operator's operands

_AFFINE = frozenset(
    {
        *("aten.select", "braid.slice", "aten.cat", "braid.affine"),
        *("braid.squeeze", "braid.unsqueeze", "braid.reshape", "braid.flatten", "braid.identity"),
        *("braid.expand", "aten.permute", "braid.full_like", "aten.neg", "aten.add", "aten.sub"),
        *("braid.constant_of_shape", "braid.range"),
    }
)
"""Kinds whose results are affine in the numbers that they read."""

_SHAPES: Mapping[str, tuple[str, ...]] = {
    "braid.reshape": ("shape",),
    "braid.expand": ("shape",),
    "braid.constant_of_shape": ("shape",),
    "braid.slice": ("starts", "ends"),
    "braid.range": ("limit",),
    "braid.tile": ("repeats",),
    "braid.split": ("sizes",),
    "braid.resize": ("sizes",),
}
"""Attributes that the number of rows may decide: the walk looks at the shapes."""

_SPREAD = frozenset({"braid.expand", "braid.constant_of_shape", "braid.full_like", "braid.tile"})
"""Kinds that repeat elements without rows for each row."""


def batch_axes(
    template: OpGraph, weights: Mapping[str, Tensor], inputs: Mapping[str, TensorType]
) -> dict[str, int | None]:
    """Axis of the rows of each output; None for an output that is the same for all.

    ``template`` has the batch as dimension 0 of every input. Raises ``RowsMeet``, naming the
    operator, or ``InvalidRequest`` if the model does not run in such a batch.
    """
    traces = [trace(template, weights, with_rows(inputs, rows)) for rows in BATCHES]
    facts = Walk(dict.fromkeys(inputs, Rows(0)), *traces).run()
    return {name: output_axis(name, fact) for name, fact in facts.items()}


def with_rows(inputs: Mapping[str, TensorType], rows: int) -> dict[str, TensorType]:
    return {n: TensorType(spec.dtype, (rows, *spec.shape[1:])) for n, spec in inputs.items()}


def output_axis(name: str, fact: Fact | RowsMeet) -> int | None:
    """Axis of the rows, None: the same for all; ``RowsMeet`` without one part for each row."""
    if isinstance(fact, RowsMeet):
        raise fact
    if fact is SAME:
        return None
    if not isinstance(fact, Rows) or fact.has_place:
        raise RowsMeet(f"output {name!r} tells the number of rows or their places")
    if fact.outer * fact.inner != 1:
        raise RowsMeet(f"output {name!r} joins the rows with another dimension")
    return fact.axis


class Walk:
    """One model in two batches, and the facts of its values."""

    def __init__(self, inputs: Mapping[str, Fact], small: Trace, large: Trace) -> None:
        self._traces = small, large
        self._facts: dict[str, Fact | RowsMeet] = dict(inputs)

    def run(self) -> dict[str, Fact | RowsMeet]:
        """Facts of the outputs; raises ``RowsMeet`` if the rows decide which operators run."""
        small, large = self._traces
        outlines = [[(op.kind, op.outputs) for op in some.operators] for some in self._traces]
        if outlines[0] != outlines[1]:
            raise RowsMeet("the number of rows decides which operators run")
        for operators in zip(small.operators, large.operators, strict=True):
            self._facts.update(zip(operators[0].outputs, self._after(operators), strict=False))
        if any(self._fact(value) is not SAME for value in small.conditions):
            raise RowsMeet("the number of rows decides which operators run")
        return {name: self._known(value) for name, value in small.outputs.items()}

    def _known(self, name: str) -> Fact | RowsMeet:
        try:
            return self._fact(name)
        except RowsMeet as reason:
            return reason

    def _fact(self, name: str) -> Fact:
        fact = self._facts.get(name)
        if fact is None:
            fact = self._facts[name] = self._by_content(name)
        if isinstance(fact, RowsMeet):
            raise fact
        return fact

    def _after(self, operators: tuple[Operator, Operator]) -> Sequence[Fact | RowsMeet]:
        small = operators[0]
        try:
            return self._results(operators)
        except RowsMeet as reason:
            if not reason.operator:
                reason = RowsMeet(str(reason), named(small))
            return [reason] * len(small.outputs)

    def _results(self, operators: tuple[Operator, Operator]) -> Sequence[Fact | RowsMeet]:
        small = operators[0]
        if small.kind in OPS and OPS[small.kind].shape_only:
            return [self._extents(small.inputs[0], name) for name in small.outputs]
        facts = [self._fact(name) if name else None for name in small.inputs]
        hosts = {key: self._fact(value) for key, value in small.host.items()}
        self._check_extents(small, facts, hosts)
        if any(isinstance(fact, Rows) for fact in facts):
            return self._by_rule(operators, facts)
        if all(name in some.contents for some in self._traces for name in small.outputs):
            return [self._by_content(name) for name in small.outputs]
        return [self._without_rows(small, name) for name in small.outputs]

    def _extents(self, value: str, name: str) -> Fact:
        """Rows may meet in extents; ``RowsMeet`` if one is not linear in the number of rows."""
        for few, many in zip(*(self._shape(value, at) for at in (0, 1)), strict=True):
            if few != many and few * BATCHES[1] != many * BATCHES[0]:
                raise RowsMeet("has an extent that is not linear in the number of rows")
        few, many = (some.contents[name] for some in self._traces)
        return SAME if torch.equal(few, many) else EXTENTS

    def _check_extents(
        self, small: Operator, facts: Sequence[Fact | None], hosts: Mapping[str, Fact]
    ) -> None:
        """Raise ``RowsMeet`` if the rows' number decides more than shapes and affine numbers."""
        for key, fact in hosts.items():
            if isinstance(fact, Rows | Places):
                raise RowsMeet(f"reads in advance what rows hold ({key})")
            if fact is EXTENTS and key not in _SHAPES.get(small.kind, ()):
                raise RowsMeet(f"computes with the number of rows ({key})")
        places = [i for i, fact in enumerate(facts) if fact is EXTENTS or isinstance(fact, Places)]
        if not places or (small.kind in TAKES_PLACES and EXTENTS not in facts):
            return
        is_constant = not any(isinstance(fact, Rows) for fact in facts)
        if not is_constant or EPILOGUE in small.attributes or not self._is_affine(small, places):
            raise RowsMeet("computes with the number of rows")

    def _is_affine(self, operator: Operator, places: Sequence[int]) -> bool:
        few, many = (
            [some.contents[name] for name in operator.inputs if name] for some in self._traces
        )
        rule = _AFFINE_IF.get(operator.kind)
        return operator.kind in _AFFINE if rule is None else rule(operator, places, few, many)

    def _by_content(self, name: str) -> Fact:
        few, many = (some.contents[name] for some in self._traces)
        if few is many or (few.shape == many.shape and _are_equal(few, many)):
            return SAME
        if few.shape == many.shape:
            return EXTENTS
        axis = only_axis(tuple(few.shape), tuple(many.shape))
        ends = [content.movedim(axis, -1) for content in (few, many)]
        firsts = [end[..., :1] for end in ends]
        is_repeated = all(_are_equal(*pair) for pair in zip(ends, firsts, strict=True))
        if is_repeated and _are_equal(*firsts):
            return self._repeated(name, axis)
        steps = torch.cat([end.diff().flatten() for end in ends])
        is_counted = not few.is_floating_point() and bool((steps == steps[0]).all())
        if is_counted and [end.shape[-1] for end in ends] == [*BATCHES] and _are_equal(*firsts):
            return Places(axis, int(steps[0]), int(firsts[0].min()), int(firsts[0].max()))
        raise RowsMeet("makes other numbers for other rows")

    def _without_rows(self, operator: Operator, name: str) -> Fact:
        shapes = [self._shape(name, at) for at in (0, 1)]
        if shapes[0] == shapes[1]:
            return SAME
        axis = only_axis(*shapes)
        operands = [self._shape(source, 0) for source in operator.inputs if source]
        is_new = operator.kind == "braid.tile" or all(
            _aligned(shape, axis, shapes[0]) == 1 for shape in operands
        )
        if operator.kind not in _SPREAD or not is_new:
            raise RowsMeet("makes other numbers in another batch")
        return self._repeated(name, axis)

    def _repeated(self, name: str, axis: int) -> Fact:
        """Fact of a value whose elements along an axis are equal, so each row has its share."""
        few, many = (self._shape(name, at)[axis] for at in (0, 1))
        return self._checked(Rows(axis, inner=many - few), name)

    def _by_rule(
        self, operators: tuple[Operator, Operator], facts: Sequence[Fact | None]
    ) -> list[Fact | RowsMeet]:
        small = operators[0]
        rule = RULES.get(small.kind)
        if rule is None:
            raise RowsMeet("is not known to keep rows apart")
        has_places = any(isinstance(fact, Rows) and fact.has_place for fact in facts)
        if has_places and small.kind not in TAKES_PLACES:
            raise RowsMeet("computes with the places of rows")
        shapes, results = self._shapes(small.inputs), self._shapes(small.outputs)
        found = rule(Site(operators, facts, shapes, results))
        known: list[Fact | RowsMeet] = [
            self._checked(*pair) for pair in zip(found, small.outputs, strict=False)
        ]
        unknown = RowsMeet("numbers the elements of all rows", named(small))
        return known + [unknown] * (len(small.outputs) - len(known))

    def _checked(self, fact: Fact, name: str) -> Fact:
        return checked(fact, [self._shape(name, at) for at in (0, 1)])

    def _shapes(self, names: Sequence[str]) -> tuple[list[Shape], list[Shape]]:
        few, many = ([self._shape(n, at) if n else () for n in names] for at in (0, 1))
        return few, many

    def _shape(self, name: str, at: int) -> Shape:
        shape = self._traces[at].specs[name].shape
        if not all(isinstance(extent, int) for extent in shape):
            raise RowsMeet("has an extent that follows the content")
        return tuple(int(extent) for extent in shape)


def checked(fact: Fact, shapes: Sequence[Shape]) -> Fact:
    """``fact``; raises ``RowsMeet`` if the shapes in both batches contradict it."""
    if fact is SAME and shapes[0] == shapes[1]:
        return fact
    assert isinstance(fact, Rows)
    axis = only_axis(*shapes)
    wanted = [fact.outer * fact.inner * rows for rows in BATCHES]
    if axis != fact.axis or [shape[axis] for shape in shapes] != wanted:
        raise RowsMeet("does not give one part for each row")
    return fact


def named(operator: Operator) -> str:
    return f"operator {operator.name!r} ({operator.kind})"


def _aligned(shape: Shape, axis: int, result: Shape) -> int:
    """Extent of a broadcast operand along an axis of the result."""
    place = axis - (len(result) - len(shape))
    return shape[place] if place >= 0 else 1


def _are_equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal after broadcasting; NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _is_whole(content: Tensor) -> bool:
    return bool((content.double() % 1 == 0).all())


_IsAffine = Callable[[Operator, Sequence[int], Contents, Contents], bool]

_WIDE = ("INT32", "INT64", "FP32", "FP64")  # types that hold the number of rows


def _cast(operator: Operator, _: Sequence[int], few: Contents, many: Contents) -> bool:
    return operator.attributes["dtype"] in _WIDE and _is_whole(few[0]) and _is_whole(many[0])


def _quotient(_: Operator, places: Sequence[int], few: Contents, many: Contents) -> bool:
    return list(places) == [0] and all(_is_whole(x.double() / y) for x, y in (few, many))


def _beside(limit: int) -> _IsAffine:
    """Test for kinds that choose, beside numbers of at most ``limit``, always in the same way."""

    def rule(_: Operator, places: Sequence[int], few: Contents, _many: Contents) -> bool:
        others = [content for i, content in enumerate(few) if i not in places]
        return bool(others) and all(bool((content <= limit).all()) for content in others)

    return rule


_AFFINE_IF: Mapping[str, _IsAffine] = {
    "braid.gather": lambda _, places, few, many: list(places) == [0],
    "braid.cast": _cast,
    "aten.mul": lambda _, places, few, many: len(places) == 1,
    "aten.div": _quotient,
    "braid.prod": lambda _, places, few, many: int((few[0] != many[0]).sum()) == 1,
    "aten.where": lambda _, places, few, many: 0 not in places,
    "aten.eq": _beside(-1),  # looks for the -1 of a Reshape
    "aten.maximum": _beside(1),
}
"""Kinds that are affine in the numbers of some operands beside some others."""
