"""Finds for each open axis of a verified model whether padding is exact, and how.

    walk over the graph ──shows it──> trials against the reference ──agree──> exact
              └─NotShown: the reason            └─disagree: the error

Trials alone prove nothing: content that random inputs do not hit may let padding through. So they
only confirm what the walk shows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.padding import BY_CONSTRUCTION, BY_TRIAL, MASK, ZEROS, PaddedAxis, PaddedInput
from braid.core.tensor import BATCH, BYTES, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.padding.facts import DoesNotRun, NotShown
from braid.engine.importer.padding.walk import ANYTHING, Shown, Walk
from braid.engine.importer.verification.compare import Disagreement, compare
from braid.engine.importer.verification.example_inputs import Example
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.importer.verification.verify import Subject
from braid.engine.passes.specialise import Trace, static_inputs, trace

_LONG = (512, 256, 128, 64, 32, 16, 8, 4)  # extents to walk at, the first at which it runs
_SHORT = (13, 5, 3, 8, 4, 2, 16, 32)
_TRIALS = ((1, 2), (5, 6), (3, 16), (11, 32), (1, 48), (30, 64), (60, 128))  # lengths and extents
_FEWEST_TRIALS = 2
_TRIAL_SECONDS = 4.0
_LARGE = 32.0  # times what padding may hold, where it should not matter


@dataclass(frozen=True, slots=True)
class _Axis:
    """An open axis of a model, and the inputs that have it."""

    symbol: str
    dimensions: Mapping[str, int]


def padded_axes(
    subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> tuple[PaddedAxis, ...]:
    """Find for each open axis whether padding is exact.

    Args:
        subject: verified.
        batch: where its batch is; rows of several lengths are tried in one.
        reference: the uploaded model.
    """
    template = subject.template
    symbols = {dim for spec in template.inputs.values() for dim in spec.shape}
    wanted = sorted(dim for dim in symbols if isinstance(dim, str) and dim != BATCH)
    return tuple(_padded_axis(symbol, subject, batch, reference) for symbol in wanted)


def _padded_axis(
    symbol: str, subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> PaddedAxis:
    inputs = subject.template.inputs
    places = {n: [i for i, dim in enumerate(s.shape) if dim == symbol] for n, s in inputs.items()}
    axis = _Axis(symbol, {name: found[0] for name, found in places.items() if found})
    ways = {name: PaddedInput(at, ZEROS) for name, at in axis.dimensions.items()}
    refused = PaddedAxis(symbol, False, ways, {}, 0, 0.0, "", "")
    try:
        if static_inputs(subject.template):
            raise NotShown("the content of inputs decides shapes")
        if any(len(found) > 1 for found in places.values()):
            raise NotShown("an input has the axis twice")
        if any(inputs[name].dtype == BYTES for name in axis.dimensions):
            raise NotShown("strings are not padded")
        up_to, least, shown = _shown(axis, subject, batch)
    except NotShown as reason:
        return replace(refused, reason=str(reason)[:300])
    ways |= {name: replace(ways[name], way=MASK) for name in ways if least[name] == MASK}
    how = BY_CONSTRUCTION if shown.is_firm else BY_TRIAL
    padded = PaddedAxis(symbol, True, ways, shown.outputs, up_to, 0.0, how, "")
    try:
        return replace(padded, error=_tried(padded, least, subject, batch, reference))
    except (Disagreement, ReferenceFailed) as error:
        return replace(refused, reason=f"a trial disagrees: {error}"[:300])


def _shown(
    axis: _Axis, subject: Subject, batch: BatchAxes | None
) -> tuple[int, Mapping[str, str], Shown]:
    """The longest extent and result of a walk that shows it, and what it must know of inputs.

    Raises:
        NotShown: none does.
    """
    reason = NotShown("the model runs at no two extents that were tried")
    for long, traced in _traces(axis, subject, batch):
        try:
            return long, *_least(Walk(*traced), subject.template.inputs)
        except DoesNotRun as error:
            reason = error
    raise reason


def _traces(
    axis: _Axis, subject: Subject, batch: BatchAxes | None
) -> Iterator[tuple[int, tuple[Trace, Trace]]]:
    """Extents at which the model runs, the longest first, with traces at a shorter one and there."""
    rows = 2 if batch is not None and not batch.alone else 1

    def at(extent: int) -> Trace | None:
        specs = _specs(axis, subject, extent, rows if batch is not None else None)
        try:
            return trace(subject.template, subject.weights, specs)
        except InvalidRequest:
            return None

    for long in _LONG:
        if (after := at(long)) is None:
            continue
        for short in (extent for extent in _SHORT if extent < long):
            if (before := at(short)) is not None:
                yield long, (before, after)
                break


def _specs(axis: _Axis, subject: Subject, extent: int, rows: int | None) -> dict[str, TensorType]:
    """The example's specs with another extent, and other rows unless None."""
    specs = {}
    for name, spec in subject.example.specs.items():
        shape = list(spec.shape)
        if rows is not None:
            shape[0] = rows
        if name in axis.dimensions:
            shape[axis.dimensions[name]] = extent
        specs[name] = TensorType(spec.dtype, tuple(shape))
    return specs


def _least(walk: Walk, inputs: Collection[str]) -> tuple[Mapping[str, str], Shown]:
    """The least that a walk must know of the padding of inputs to show that it is exact.

    Raises:
        NotShown: nothing is enough; says why masks everywhere are not.
    """
    for start in (ANYTHING, ZEROS, MASK):
        ways = dict.fromkeys(inputs, start)
        try:
            shown = walk.run(ways)
            break
        except NotShown as error:
            if start == MASK or isinstance(error, DoesNotRun):
                raise
    for name in inputs:
        for way in (ANYTHING, ZEROS):
            if ways[name] in (way, ANYTHING):
                break
            with suppress(NotShown):
                shown = walk.run({**ways, name: way})
                ways[name] = way
    return ways, shown


def _tried(
    padded: PaddedAxis,
    least: Mapping[str, str],
    subject: Subject,
    batch: BatchAxes | None,
    reference: ReferenceModel,
) -> float:
    """The largest error of padded runs of the reference, against the same rows alone.

    Raises:
        Disagreement: one is beyond the tolerance of the model.
        ReferenceFailed: it runs on nothing that is tried.
    """
    axis = _Axis(padded.axis, {n: part.dimension for n, part in padded.inputs.items()})
    count = 3 if batch is not None and not batch.alone else 1
    deadline, errors = time.monotonic() + _TRIAL_SECONDS, list[float]()
    failure: ReferenceFailed | None = None
    for seed, (length, extent) in enumerate(_TRIALS):
        if extent > padded.up_to or (len(errors) >= _FEWEST_TRIALS and time.monotonic() > deadline):
            break
        lengths = [length, extent, max(1, extent // 2)][:count]
        rows = _rows(axis, subject.example, padded, extent, count, seed)
        try:
            errors += _errors(rows, lengths, padded, least, subject, batch, reference)
        except ReferenceFailed as error:
            failure = error
    if not errors:
        raise failure or ReferenceFailed("nothing was tried")
    return max(errors)


def _rows(
    axis: _Axis, example: Example, padded: PaddedAxis, extent: int, count: int, seed: int
) -> list[dict[str, Tensor]]:
    """Random rows at an extent; their masks begin with a one."""
    specs = {}
    for name, spec in example.specs.items():
        shape = list(spec.shape)
        if name in axis.dimensions:
            shape[axis.dimensions[name]] = extent
        specs[name] = TensorType(spec.dtype, tuple(shape))
    kind = replace(example, specs=specs)
    rows = [kind.draw(None, seed=10 * seed + index) for index in range(count)]
    for index, row in enumerate(rows):
        for name, part in padded.inputs.items():
            if part.way == MASK:
                row[name] = _mask(row[name], part.dimension, seed=seed + index)
    return rows


def _mask(like: Tensor, dimension: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones_like(like)
    if seed % 3 == 1:  # holes
        mask = torch.randint(0, 2, like.shape, generator=generator).to(like.dtype)
    elif seed % 3 == 2:  # padded by the client
        mask.narrow(dimension, (like.shape[dimension] + 1) // 2, like.shape[dimension] // 2).zero_()
    mask.narrow(dimension, 0, 1).fill_(1)
    return mask


def _errors(
    rows: Sequence[Mapping[str, Tensor]],
    lengths: Sequence[int],
    padded: PaddedAxis,
    least: Mapping[str, str],
    subject: Subject,
    batch: BatchAxes | None,
    reference: ReferenceModel,
) -> Iterator[float]:
    """Errors of rows padded with zeros, and with large numbers where that should not matter.

    Raises:
        Disagreement, ReferenceFailed: see ``_tried``.
    """
    alone = [
        reference.run({n: _short(n, tensor, padded, length) for n, tensor in row.items()})
        for row, length in zip(rows, lengths, strict=True)
    ]
    for factor in (0.0, 1.0, _LARGE):
        filled = [
            {
                n: _filled(n, x, padded, length, factor if least[n] == ANYTHING else 0)
                for n, x in row.items()
            }
            for row, length in zip(rows, lengths, strict=True)
        ]
        for expected, got, length in _runs(alone, filled, lengths, batch, reference):
            cut = {
                name: output.narrow(padded.outputs[name], 0, length)
                if name in padded.outputs
                else output
                for name, output in got.items()
            }
            yield compare(expected, cut, subject.tolerance)


def _runs(
    alone: Sequence[Mapping[str, Tensor]],
    filled: Sequence[Mapping[str, Tensor]],
    lengths: Sequence[int],
    batch: BatchAxes | None,
    reference: ReferenceModel,
) -> Iterator[tuple[Mapping[str, Tensor], Mapping[str, Tensor], int]]:
    """Outputs of a row alone and padded, and its length: in a batch, where the reference takes one.

    Raises:
        ReferenceFailed: it does not run.
    """
    if batch is not None and len(filled) > 1:
        try:
            together = reference.run({n: torch.cat([r[n] for r in filled]) for n in filled[0]})
        except ReferenceFailed:
            pass
        else:
            for index, (expected, length) in enumerate(zip(alone, lengths, strict=True)):
                row = {
                    name: output
                    if (at := batch.outputs[name]) is None
                    else output.narrow(at, index, 1)
                    for name, output in together.items()
                }
                yield expected, row, length
            return
    for expected, row, length in zip(alone, filled, lengths, strict=True):
        yield expected, reference.run(row), length


def _short(name: str, tensor: Tensor, padded: PaddedAxis, length: int) -> Tensor:
    part = padded.inputs.get(name)
    return tensor if part is None else tensor.narrow(part.dimension, 0, length).contiguous()


def _filled(name: str, tensor: Tensor, padded: PaddedAxis, length: int, factor: float) -> Tensor:
    """The tensor with zeros behind ``length``, or with its own numbers there, times a factor."""
    part = padded.inputs.get(name)
    if part is None:
        return tensor
    filled = tensor.clone()
    rest = filled.narrow(part.dimension, length, tensor.shape[part.dimension] - length)
    if factor == 0:
        rest.zero_()
    elif rest.is_floating_point():
        rest.mul_(factor)
    return filled
