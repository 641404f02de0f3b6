"""Finds for each open axis of a verified model whether padding is exact, and how.

    walk over the graph ──shows it──> trials against the reference ──agree──> exact
              └─NotShown: the reason            └─disagree: the error

Trials alone prove nothing: content that random inputs do not hit may let padding through. So they
only confirm what the walk shows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.padding import (
    BY_CONSTRUCTION,
    BY_TRIAL,
    MASK,
    REPEAT,
    ZEROS,
    PaddedAxis,
    PaddedInput,
)
from braid.core.tensor import BATCH, BYTES, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.padding.facts import DoesNotRun, NotShown
from braid.engine.importer.padding.walk import ANYTHING, Shown, Walk, followed_dimensions
from braid.engine.importer.verification.compare import Disagreement, compare
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.importer.verification.verify import Subject
from braid.engine.passes.specialise import Trace, static_inputs, trace

_LONG = (512, 256, 128, 64, 32, 16, 8, 4)  # extents to walk at, the first at which it runs
_SHORT = (13, 5, 3, 8, 4, 2, 16, 32)
_EVEN = 16  # extents from here on are doubled for another one: some models want multiples
_TRIALS = ((1, 2), (5, 6), (3, 16), (11, 32), (1, 48), (30, 64), (60, 128))  # lengths and extents
_FEWEST_ERRORS = 6
_CONTENTS = 2  # that run at the longest extent
_USUAL = 64  # extent at which a run is timed
_TRIAL_SECONDS = 3.0
_RUN_SECONDS = 8.0  # of one run, as estimated
_LARGE = 32.0  # times what padding may hold, where it should not matter


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
    return tuple(_found_or_refused(symbol, subject, batch, reference) for symbol in wanted)


def _found_or_refused(
    symbol: str, subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> PaddedAxis:
    """The verdict; want of memory while it is looked for ends no import."""
    try:
        return _padded_axis(symbol, subject, batch, reference)
    except MemoryError:
        return PaddedAxis(symbol, False, {}, {}, 0, 0.0, "", "its trials take too much memory")


def _padded_axis(
    symbol: str, subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> PaddedAxis:
    inputs = subject.template.inputs
    places = {n: [i for i, dim in enumerate(s.shape) if dim == symbol] for n, s in inputs.items()}
    ways = {name: PaddedInput(found[0], ZEROS) for name, found in places.items() if found}
    refused = PaddedAxis(symbol, False, ways, {}, 0, 0.0, "", "")
    if why := _why_not(subject, places):
        return replace(refused, reason=why)
    try:
        up_to, least, shown = _shown(refused, subject, batch)
    except NotShown as reason:
        refused = replace(refused, reason=str(reason)[:300])
        return _with_trials(refused, subject, batch, reference)
    ways |= {name: replace(ways[name], way=MASK) for name in ways if least[name] == MASK}
    how = BY_CONSTRUCTION if shown.is_firm else BY_TRIAL
    padded = PaddedAxis(symbol, True, ways, shown.outputs, up_to, 0.0, how, "")
    trials = _Trials(padded, least, subject, batch, reference, subject.tolerance)
    try:
        padded = trials.shortened(_CONTENTS)
        return replace(padded, error=replace(trials, padded=padded).error())
    except (Disagreement, ReferenceFailed) as error:
        refused = replace(refused, reason=f"a trial disagrees: {error}"[:300])
        return _with_trials(refused, subject, batch, reference)


def _why_not(subject: Subject, places: Mapping[str, Sequence[int]]) -> str:
    """Why an axis is not looked at; "" if it is. ``places``: of each input, where it has it."""
    if static_inputs(subject.template):
        return "the content of inputs decides shapes"
    if subject.example.samples:
        return "the model takes no content that is made up for other extents"
    if any(len(found) > 1 for found in places.values()):
        return "an input has the axis twice"
    if any(places[n] and spec.dtype == BYTES for n, spec in subject.template.inputs.items()):
        return "strings are not padded"
    return ""


def _with_trials(
    refused: PaddedAxis, subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> PaddedAxis:
    """The verdict with errors of trials, for who asks for padding though nothing shows it."""
    tried = dict[str, float]()
    for extents, traced in _traces(refused, subject, batch):
        try:
            outputs = followed_dimensions(*traced[:2], extents)
        except NotShown:
            break
        refused = replace(refused, outputs=outputs, up_to=extents[1])
        for way in (ZEROS, REPEAT):
            inputs = {n: PaddedInput(part.dimension, way) for n, part in refused.inputs.items()}
            least = dict.fromkeys(subject.template.inputs, way)
            asked = replace(refused, inputs=inputs)
            trials = _Trials(asked, least, subject, batch, reference, math.inf)
            with suppress(Disagreement, ReferenceFailed):
                refused = replace(refused, up_to=trials.shortened(1).up_to)
                error = replace(trials, padded=replace(asked, up_to=refused.up_to)).error()
                tried |= {way: error} if math.isfinite(error) else {}
        break
    return replace(refused, tried=tried)


def _shown(
    axis: PaddedAxis, subject: Subject, batch: BatchAxes | None
) -> tuple[int, Mapping[str, str], Shown]:
    """The longest extent and result of a walk that shows it, and what it must know of inputs.

    Raises:
        NotShown: none does.
    """
    reason = NotShown("the model runs at no two extents that were tried")
    for extents, traced in _traces(axis, subject, batch):
        try:
            return extents[1], *_least(Walk(traced, extents), subject.template.inputs)
        except DoesNotRun as error:
            reason = error
    raise reason


def _traces(
    axis: PaddedAxis, subject: Subject, batch: BatchAxes | None
) -> Iterator[tuple[tuple[int, int], tuple[Trace, Trace, Trace]]]:
    """Pairs of extents at which the model runs, the longest first, with their traces.

    The third trace is at the longer extent with another batch, and others of the other open axes.
    """
    others = _other_extents(axis, subject, batch)

    def at(extent: int, choice: int) -> Trace | None:
        extents = {symbol: some[choice] for symbol, some in others.items()}
        bound = {**extents, axis.axis: extent}
        specs = {name: spec.bind(bound) for name, spec in subject.template.inputs.items()}
        try:
            return trace(subject.template, subject.weights, specs)
        except InvalidRequest:
            return None

    for long in _LONG:
        after, beside = at(long, 0), at(long, 1)
        if after is None or beside is None:
            continue
        for short in (extent for extent in _SHORT if extent < long):
            if (before := at(short, 0)) is not None:
                yield (short, long), (before, after, beside)
                break


def _other_extents(
    axis: PaddedAxis, subject: Subject, batch: BatchAxes | None
) -> dict[str, tuple[int, int]]:
    """Two extents of each other open axis, none of them 1 where a request may have several."""
    others = {}
    for name, spec in subject.template.inputs.items():
        for dim, extent in zip(spec.shape, subject.example.specs[name].shape, strict=True):
            if isinstance(dim, str) and dim != axis.axis:
                first = max(2, int(extent))
                others[dim] = (first, first + 1 if first < _EVEN else 2 * first)
    if batch is not None and batch.alone:
        others[BATCH] = (1, 1)
    return others


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


@dataclass(frozen=True, slots=True)
class _Trials:
    """Runs of the reference on padded requests, against the same requests alone."""

    padded: PaddedAxis
    least: Mapping[str, str]  # of each input, what its padding must be
    subject: Subject
    batch: BatchAxes | None
    reference: ReferenceModel
    tolerance: float

    def shortened(self, contents: int) -> PaddedAxis:
        """The verdict up to the longest extent at which short requests run when they are padded.

        A table of positions may be shorter, and padding counted as positions. Where a run would
        take long, longer extents are not tried.

        Raises:
            ReferenceFailed: there is none.
        """
        extents = [extent for extent in _LONG if extent <= self.padded.up_to]
        usual = sorted(extents, key=lambda extent: (extent > _USUAL, abs(extent - _USUAL)))
        failure = ReferenceFailed("it was not run")
        for base in usual:
            try:
                seconds = self._seconds(base, 1)
            except ReferenceFailed as error:
                failure = error
                continue
            for extent in extents:
                if extent > base and seconds * (extent / base) ** 1.5 > _RUN_SECONDS:
                    continue
                with suppress(ReferenceFailed):
                    self._seconds(extent, contents)
                    return replace(self.padded, up_to=extent)
            break
        raise failure

    def _seconds(self, extent: int, contents: int) -> float:
        """Time that a run of a short, padded request takes.

        Raises:
            ReferenceFailed: one does not run.
        """
        rows = self._rows(extent, contents, seed=0)
        begun = time.monotonic()
        for row in rows:
            self.reference.run(self._filled(row, min(3, extent), factor=0))
        return (time.monotonic() - begun) / contents

    def error(self) -> float:
        """The largest error.

        Raises:
            Disagreement: one is beyond the tolerance of the model.
            ReferenceFailed: it runs on nothing that is tried.
        """
        count = 3 if self.batch is not None and not self.batch.alone else 1
        deadline, errors = time.monotonic() + _TRIAL_SECONDS, list[float]()
        failure = ReferenceFailed("nothing was tried")
        for seed, (length, extent) in enumerate(_TRIALS):
            is_late = len(errors) >= _FEWEST_ERRORS and time.monotonic() > deadline
            if extent > self.padded.up_to or is_late:
                break
            lengths = [length, extent, max(1, extent // 2)][:count]
            try:
                errors += self._errors(self._rows(extent, count, seed), lengths)
            except ReferenceFailed as error:
                failure = error
        if not errors:
            raise failure
        return max(errors)

    def _rows(self, extent: int, count: int, seed: int) -> list[dict[str, Tensor]]:
        """Random rows at an extent; their masks begin with a one."""
        specs = {}
        for name, spec in self.subject.example.specs.items():
            shape = list(spec.shape)
            if name in self.padded.inputs:
                shape[self.padded.inputs[name].dimension] = extent
            specs[name] = TensorType(spec.dtype, tuple(shape))
        kind = replace(self.subject.example, specs=specs)
        rows = [kind.draw(None, seed=10 * seed + index) for index in range(count)]
        for index, row in enumerate(rows):
            for name, part in self.padded.inputs.items():
                if part.way == MASK:
                    row[name] = _mask(row[name], part.dimension, seed=seed + index)
        return rows

    def _errors(
        self, rows: Sequence[Mapping[str, Tensor]], lengths: Sequence[int]
    ) -> Iterator[float]:
        """Errors of rows padded with zeros, and with large numbers where that should not matter.

        Raises:
            Disagreement, ReferenceFailed: see ``error``.
        """
        pairs = list(zip(rows, lengths, strict=True))
        alone = [self.reference.run(self._short(row, length)) for row, length in pairs]
        for factor in (0.0, 1.0, _LARGE):
            filled = [self._filled(row, length, factor) for row, length in pairs]
            for expected, outputs, length in zip(alone, self._run(filled), lengths, strict=True):
                yield compare(expected, self._cut(outputs, length), self.tolerance)

    def _run(self, rows: Sequence[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
        """Outputs of each row: of one run of all, where the reference takes that.

        Raises:
            ReferenceFailed: it does not run.
        """
        if self.batch is not None and len(rows) > 1:
            axes = self.batch.outputs
            joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
            with suppress(ReferenceFailed):
                together = self.reference.run(joined)
                return [
                    {
                        n: x if (at := axes[n]) is None else x.narrow(at, i, 1)
                        for n, x in together.items()
                    }
                    for i in range(len(rows))
                ]
        return [self.reference.run(row) for row in rows]

    def _short(self, row: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        parts = self.padded.inputs
        return {
            name: x.narrow(parts[name].dimension, 0, length).contiguous() if name in parts else x
            for name, x in row.items()
        }

    def _cut(self, outputs: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        places = self.padded.outputs
        if any(outputs[name].shape[at] < length for name, at in places.items()):
            raise Disagreement("an output does not follow the extents of the inputs")
        return {
            name: x.narrow(places[name], 0, length) if name in places else x
            for name, x in outputs.items()
        }

    def _filled(self, row: Mapping[str, Tensor], length: int, factor: float) -> dict[str, Tensor]:
        """The row with zeros behind ``length``, or its own numbers there times a factor.

        Zeros also where padding has to be zero.
        """
        filled = dict(row)
        for name, part in self.padded.inputs.items():
            filled[name] = row[name].clone()
            extent = row[name].shape[part.dimension]
            rest = filled[name].narrow(part.dimension, length, extent - length)
            if part.way == REPEAT:
                last = filled[name].narrow(part.dimension, length - 1, 1)
                rest.copy_(last.expand_as(rest))
            elif factor == 0 or self.least[name] != ANYTHING:
                rest.zero_()
            elif rest.is_floating_point():
                rest.mul_(factor)
        return filled


def _mask(like: Tensor, dimension: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones_like(like)
    if seed % 3 == 1:  # holes
        mask = torch.randint(0, 2, like.shape, generator=generator).to(like.dtype)
    elif seed % 3 == 2:  # padded by the client
        extent = like.shape[dimension]
        mask.narrow(dimension, (extent + 1) // 2, extent // 2).zero_()
    mask.narrow(dimension, 0, 1).fill_(1)
    return mask
