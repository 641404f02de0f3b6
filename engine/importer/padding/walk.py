"""Walk over a model at two extents of an axis, to show that padding is exact by construction.

    the model at length L ────────────────┐
    the model at length P ────────────────┼─> each operator by its rule (rules.py)
    at P, other extents of its other axes ┘         ──> outputs, or NotShown

A rule says of an operator, whatever its operands hold: if they are at the positions of the request
what they are without padding, so are its results. Operators without a rule may read nothing that
has the axis. Extents are numbers to a model, too: what is computed from them may only be affine, so
that what holds at L and P holds at all extents, and at all of the other axes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from braid.core.errors import BraidError
from braid.core.graph import Operator
from braid.core.padding import MASK
from braid.engine.importer.padding.facts import (
    FIRST,
    OUT,
    DoesNotRun,
    Fact,
    NotShown,
    constant,
    regions,
)
from braid.engine.importer.padding.fills import (
    FINITE,
    FIRM,
    ONE,
    WILD,
    ZERO,
    elementwise,
    is_elementwise,
)
from braid.engine.importer.padding.rules import RULES, TAKES_BLOCKS
from braid.engine.importer.padding.site import Site, by_elements
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.evaluation import attempt
from braid.engine.ops.kinds import EPILOGUE, OpDef, epilogue_steps
from braid.engine.passes.specialise import Trace

Contents = tuple[Tensor, ...]  # of a value, one for each trace

ANYTHING = "anything"
"""Way of an input whose padding does not matter."""

_MOST_ELEMENTS = 1 << 22  # of constants that are evaluated for their content

_MOVES = frozenset(
    {
        *("braid.gather", "aten.select", "braid.slice", "aten.cat", "braid.squeeze"),
        *("braid.unsqueeze", "braid.reshape", "braid.flatten", "braid.cast", "braid.identity"),
        *("braid.expand", "aten.permute", "braid.constant_of_shape", "braid.range"),
        *("aten.add", "aten.sub", "aten.neg", "braid.full_like"),
    }
)
"""Kinds that make sums of extents and constants, of sums of extents and constants."""

_TAKES_EXTENTS: Mapping[str, Collection[str]] = {
    "braid.reshape": ("shape",),
    "braid.expand": ("shape",),
    "braid.slice": ("ends",),
    "braid.range": ("limit",),
    "braid.constant_of_shape": ("shape",),
}
"""Attributes that may be made of extents: what they do to shapes is looked at."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Result of a walk that shows that padding is exact."""

    outputs: Mapping[str, int]  # output -> dimension of the axis
    is_firm: bool  # whatever the content: no score is hidden by a number that another could reach


class Walk:
    """One model at two extents, and the facts of its values."""

    def __init__(self, traces: tuple[Trace, Trace, Trace], extents: tuple[int, int]) -> None:
        """Take the same model at two extents of one axis, and at the second beside other axes.

        Raises:
            NotShown: other operators run at the other extent.
        """
        outlines = [[_outline(operator) for operator in some.operators] for some in traces]
        if outlines[0] != outlines[1] or outlines[0] != outlines[2]:
            raise NotShown("other operators run at other extents")
        self._traces = traces
        self._short, self._long, _ = traces
        self._extents = extents
        self._contents: dict[str, Contents] = {}
        self._weights: dict[str, Fact] = {}
        self._facts: dict[str, Fact | NotShown] = {}
        self._weakest = FIRM

    def run(self, ways: Mapping[str, str]) -> Shown:
        """Take all operators.

        Args:
            ways: of all inputs: ``ANYTHING``, or what follows the request's content.

        Raises:
            NotShown: an output, or which operators run, may depend on padding.
        """
        self._weakest = FIRM
        self._facts = {name: self._input(name, way) for name, way in ways.items()}
        for operators in zip(*(some.operators for some in self._traces), strict=True):
            results = self._after(*operators)
            self._facts.update(zip(operators[1].outputs, results, strict=False))
        for value in self._long.conditions:
            if self._fact(value).follows:
                raise NotShown("extents decide which operators run")
        for name, value in self._long.outputs.items():
            fact = self._fact(value)
            if fact.follows or fact.blocks:
                raise NotShown(f"output {name!r} is made of extents, or joins them")
        outputs = followed_dimensions(self._short, self._long, self._extents)
        return Shown(outputs, self._weakest <= FIRM)

    def _input(self, name: str, way: str) -> Fact:
        axes = self._axes(name)
        outside, first = FINITE if way == ANYTHING else ZERO, ONE if way == MASK else FINITE
        fills = {}
        for places in regions(axes):
            kinds = set(places.values())
            fills[tuple(places.values())] = (
                outside if OUT in kinds else first if kinds == {FIRST} else FINITE
            )
        return Fact(axes, fills)

    def _axes(self, name: str) -> tuple[int, ...]:
        return _differing(self._short, self._long, name)

    def _fact(self, name: str) -> Fact:
        fact = self._facts.get(name) or self._weights.get(name)
        if fact is None:
            contents = self._content(name)
            assert contents is not None, f"{name!r} is neither an input, a result nor a weight"
            fact = self._weights[name] = constant(contents[1], self._axes(name))
        if isinstance(fact, NotShown):
            raise fact
        return fact

    def _content(self, name: str) -> Contents | None:
        """A constant in each of the traces."""
        if name not in self._contents:
            contents = [some.contents[name] for some in self._traces if name in some.contents]
            if len(contents) < len(self._traces):
                return None
            self._contents[name] = tuple(contents)
        return self._contents[name]

    def _after(self, before: Operator, after: Operator, beside: Operator) -> list[Fact | NotShown]:
        """Facts of an operator's results."""
        try:
            axes = [self._axes(name) for name in after.outputs]
            if after.kind in ("braid.shape", "braid.size"):
                return [self._constant(name, ()) for name in after.outputs]
            facts = [self._fact(name) if name else None for name in after.inputs]
            hosts = {key: self._fact(value) for key, value in after.host.items()}
            follows = self._follows(before, after, facts, hosts)
            site = self._site(before, after, facts, axes)
            results = self._by_rule(site)
            self._evaluate(before, after, beside)
            if follows and any(fact.blocks for fact in results):
                raise NotShown(f"{_named(after)} computes with an extent")
            return [
                self._constant(name, fact.axes, follows=follows)
                if self._content(name) and not fact.blocks
                else fact
                for name, fact in zip(after.outputs, results, strict=True)
            ]
        except NotShown as reason:
            return [reason] * len(after.outputs)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
            unusual = NotShown(f"{_named(after)} is used in an unusual way ({error})")
            return [unusual] * len(after.outputs)

    def _constant(self, name: str, axes: tuple[int, ...], *, follows: bool = True) -> Fact:
        contents = self._content(name)
        assert contents is not None, "its caller has looked"
        long = contents[1]
        is_same = all(_begin_alike(other, long) for other in contents)
        if not is_same and not follows:
            raise NotShown(f"{name!r} holds other numbers at other extents")
        return constant(long, axes, follows=not is_same)

    def _follows(
        self,
        before: Operator,
        after: Operator,
        facts: list[Fact | None],
        hosts: Mapping[str, Fact],
    ) -> bool:
        """Whether an operator computes with extents, as it may.

        Raises:
            NotShown: it may not.
        """
        for key, fact in hosts.items():
            taken = key in _TAKES_EXTENTS.get(after.kind, ())
            if (fact.follows and not taken) or fact.axes:
                raise NotShown(f"{_named(after)} computes with an extent ({key})")
        odd = [fact for fact in facts if fact is not None and fact.follows]
        if not odd or (after.kind == "braid.range" and len(odd) == 1):
            return False
        others = [fact for fact in facts if fact is not None and not fact.follows]
        if any(fact.content is None for fact in others) or EPILOGUE in after.attributes:
            raise NotShown(f"{_named(after)} computes with an extent")
        if after.kind in _MOVES and not (after.kind == "braid.gather" and odd[0] is not facts[0]):
            return True
        if after.kind in ("aten.mul", "braid.affine") and len(odd) == 1:
            return True
        if after.kind == "aten.where" and odd[0] is not facts[0]:
            return True
        if after.kind == "aten.eq" and all(_is_negative(fact) for fact in others) and others:
            return True  # compares extents with the -1 of a Reshape
        raise NotShown(f"{_named(after)} computes with an extent")

    def _by_rule(self, site: Site) -> list[Fact]:
        operator = site.operator
        rule = by_elements if is_elementwise(operator.kind) else RULES.get(operator.kind)
        carried = any(fact is not None and fact.axes for fact in site.facts)
        has_blocks = any(fact is not None and fact.blocks for fact in site.facts)
        if not carried and not any(site.axes):
            results = [_plain(site)] * len(operator.outputs)
        elif rule is not by_elements and operator.kind not in TAKES_BLOCKS and has_blocks:
            raise NotShown(f"{_named(operator)}: the axis is joined with another one")
        elif rule is None:
            raise NotShown(f"{_named(operator)}: nothing shows what it does along the axis")
        else:
            results = rule(site)
        if len(results) < len(operator.outputs):
            raise NotShown(f"{_named(operator)} has more results than is known of")
        for fact, axes in zip(results, site.axes, strict=False):
            if fact.axes != axes:
                raise NotShown(f"{_named(operator)} makes another shape of the axis")
        self._weakest = max(self._weakest, site.weakest)
        results = results[: len(operator.outputs)]
        if steps := epilogue_steps(operator.attributes.get(EPILOGUE)):
            results[0] = self._with_epilogue(results[0], steps, operator)
        return results

    def _with_epilogue(
        self, fact: Fact, steps: list[tuple[OpDef, dict[str, Any]]], operator: Operator
    ) -> Fact:
        dtype = torch_dtype(self._long.specs[operator.outputs[0]].dtype)
        for definition, attributes in steps:
            step = Operator(operator.name, definition.kind, ("x",), ("y",), attributes)
            fills = {
                region: elementwise(step, [fill], [dtype]) for region, fill in fact.fills.items()
            }
            fact = replace(fact, fills=fills)
        return fact

    def _site(
        self,
        before: Operator,
        after: Operator,
        facts: list[Fact | None],
        axes: list[tuple[int, ...]],
    ) -> Site:
        return Site(
            after,
            before,
            facts,
            shapes=_shapes(self._long, after.inputs),
            shorts=_shapes(self._short, after.inputs),
            results=_shapes(self._long, after.outputs),
            short_results=_shapes(self._short, after.outputs),
            axes=axes,
            dtypes=self._dtypes(after),
        )

    def _dtypes(self, operator: Operator) -> list[torch.dtype | None]:
        specs = [self._long.specs[name] if name else None for name in operator.inputs]
        return [None if spec is None else torch_dtype(spec.dtype) for spec in specs]

    def _evaluate(self, *operators: Operator) -> None:
        """Find the content of results of constants, which specialising leaves if they are large."""
        after = operators[1]
        if all(name in self._contents or self._content(name) for name in after.outputs):
            return
        given = [self._content(name) if name else (None,) * 3 for name in after.inputs]
        sizes = [self._long.specs[name].elements for name in after.outputs]
        if None in given or sum(sizes) > _MOST_ELEMENTS:
            return
        results = []
        for place, operator in enumerate(operators):
            operands = [contents[place] for contents in given if contents is not None]
            try:
                results.append(attempt(replace(operator, host={}), operands, "cpu"))
            except BraidError as error:
                raise DoesNotRun(f"{_named(after)}: {error}") from error
        for name, *contents in zip(after.outputs, *results, strict=False):
            self._contents[name] = tuple(contents)


def _begin_alike(content: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal as far as both extend."""
    if content.dim() != other.dim():
        return False
    for axis, extents in enumerate(zip(content.shape, other.shape, strict=True)):
        content, other = (x.narrow(axis, 0, min(extents)) for x in (content, other))
    return torch.equal(content.nan_to_num(), other.nan_to_num())


def _shapes(trace: Trace, names: Iterable[str]) -> list[tuple[int, ...]]:
    specs = (trace.specs[name].shape if name else () for name in names)
    return [tuple(int(dim) for dim in shape) for shape in specs]


def _differing(short: Trace, long: Trace, value: str) -> tuple[int, ...]:
    """Dimensions of a value that follow the axis.

    Raises:
        NotShown: its rank does.
    """
    shapes = short.specs[value].shape, long.specs[value].shape
    if len(shapes[0]) != len(shapes[1]):
        raise NotShown("ranks follow the extents")
    return tuple(i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b)


def followed_dimensions(short: Trace, long: Trace, extents: tuple[int, int]) -> dict[str, int]:
    """Dimension along the axis of each output that has it.

    Raises:
        NotShown: an output has it twice, or another number of positions than the inputs.
    """
    dimensions = dict[str, int]()
    for name, value in long.outputs.items():
        axes = _differing(short, long, value)
        if len(axes) > 1:
            raise NotShown(f"output {name!r} has the axis twice")
        if (
            axes
            and (short.specs[value].shape[axes[0]], long.specs[value].shape[axes[0]]) != extents
        ):
            raise NotShown(f"output {name!r} has other extents than the inputs")
        dimensions |= {name: axes[0]} if axes else {}
    return dimensions


def _outline(operator: Operator) -> tuple[object, ...]:
    return operator.name, operator.kind, operator.inputs, operator.outputs


def _named(operator: Operator) -> str:
    return f"operator {operator.name!r} ({operator.kind})"


def _is_negative(fact: Fact) -> bool:
    return fact.content is not None and bool((fact.content < 0).all())


def _plain(site: Site) -> Fact:
    """A result that does not have the axis, of operands that do not either."""
    if is_elementwise(site.operator.kind):
        (fact,) = by_elements(site)
        return fact
    is_finite = all(fact.all.is_finite for fact in site.facts if fact is not None)
    return Fact((), {(): FINITE if is_finite else WILD})
