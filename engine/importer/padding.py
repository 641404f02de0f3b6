"""Measures for each open axis of a verified model what padding changes in its outputs.

    requests padded by zeros ──reference──> cut ──compare──> error ──> PaddedAxis.tried
    the same requests alone  ──reference─────────┘

Trials prove nothing: content that random inputs do not hit may let padding through. So no model is
padded by them alone; a registration that asks for padding is refused where they disagree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from braid.core.padding import MASK, REPEAT, ZEROS, PaddedAxis, PaddedInput
from braid.core.tensor import BATCH, BYTES, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.importer.verification.verify import Subject, furthest
from braid.engine.passes.specialise import static_inputs

_LONG = (512, 256, 128, 64, 32, 16, 8, 4)  # extents to run at, the first at which it does
_TRIALS = ((1, 2), (5, 6), (3, 16), (11, 32), (1, 48), (30, 64), (60, 128))  # lengths and extents
_FEWEST_ERRORS = 6
_USUAL = 64  # extent at which a run is timed
_SHORT = 3
_TRIAL_SECONDS = 0.5  # of one error
_RUN_SECONDS = 8.0  # of one run, as estimated


class _NotTried(Exception):
    """Padding cannot be tried; the message says why."""


def padded_axes(
    subject: Subject, batch: BatchAxes | None, reference: ReferenceModel
) -> tuple[PaddedAxis, ...]:
    """Return each open axis with the errors of padding along it; none of them is exact.

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
    zeros = {name: PaddedInput(found[0], ZEROS) for name, found in places.items() if found}
    axis = PaddedAxis(symbol, False, zeros, {}, 0, 0.0, "", "")
    if why := _why_not(subject, places):
        return replace(axis, reason=why)
    try:
        return _tried(_Trials(axis, subject, batch, reference))
    except (_NotTried, ReferenceFailed) as error:
        return replace(axis, reason=f"it cannot be tried: {error}"[:300])
    except MemoryError:
        return replace(axis, reason="its trials take too much memory")


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


def _tried(trials: _Trials) -> PaddedAxis:
    """Return the axis with the error of each way to pad, and with its mask.

    An input is a mask if padding by zeros changes nothing while each of its rows begins with a one,
    and does while it hides all positions. Without a mask, every input holds zeros and ones in turn:
    content that is drawn from more may hide an error.

    Raises:
        _NotTried, ReferenceFailed: it cannot be padded at all.
    """
    trials = replace(trials, axis=trials.in_range())
    masked = [(one, one.error()) for one in trials.with_masks()]
    most = trials.subject.tolerance
    found = (
        [(one, error)]
        for one, error in masked
        if error <= most < replace(one, is_blank=True).error()
    )
    some = next(found, None) or [(trials, trials.error()), *masked]
    errors = {
        ZEROS: max(error for _, error in some),
        REPEAT: max(one.repeating().error() for one, _ in some),
    }
    tried = {way: error for way, error in errors.items() if math.isfinite(error)}
    said = ", ".join(f"{error:.1e} by {way}" for way, error in tried.items()) or "not finite"
    return replace(some[0][0].axis, reason=f"nothing asks for it; errors: {said}", tried=tried)


@dataclass(frozen=True, slots=True)
class _Trials:
    """Runs of the reference on padded requests, against the same requests alone."""

    axis: PaddedAxis
    subject: Subject
    batch: BatchAxes | None
    reference: ReferenceModel
    masks: Collection[str] = ()  # inputs that hold zeros and ones, a one first
    is_blank: bool = False  # masks hold zeros

    def with_masks(self) -> Iterator[_Trials]:
        """Yield the same trials with each input of several as a mask."""
        inputs = self.axis.inputs
        for name, part in inputs.items() if len(inputs) > 1 else ():
            masked = {**inputs, name: replace(part, way=MASK)}
            yield replace(self, axis=replace(self.axis, inputs=masked), masks=[name])

    def repeating(self) -> _Trials:
        """Return the same trials with copies of the last position."""
        inputs = {n: replace(part, way=REPEAT) for n, part in self.axis.inputs.items()}
        return replace(self, axis=replace(self.axis, inputs=inputs))

    def in_range(self) -> PaddedAxis:
        """Return the axis up to the longest extent at which short requests run when padded.

        A table of positions may be shorter, and padding counted as positions. Where a run would
        take long, longer extents are not tried.

        Raises:
            ReferenceFailed: there is none.
            _NotTried: an output does not follow the axis as the inputs do.
        """
        usual = sorted(_LONG, key=lambda extent: (extent > _USUAL, abs(extent - _USUAL)))
        failure = ReferenceFailed("it was not run")
        for base in usual:
            try:
                seconds, _ = self._run_short(base)
            except ReferenceFailed as error:
                failure = error
                continue
            for extent in _LONG:
                if extent > base and seconds * (extent / base) ** 1.5 > _RUN_SECONDS:
                    continue
                with suppress(ReferenceFailed):
                    _, outputs = self._run_short(extent)
                    return replace(self.axis, up_to=extent, outputs=self._places(outputs, extent))
        raise failure

    def _run_short(self, extent: int) -> tuple[float, Mapping[str, Tensor]]:
        """Run a short request padded to an extent; returns seconds and outputs.

        Raises:
            ReferenceFailed: it does not run.
        """
        (row,) = self._rows(extent, 1, seed=0)
        begun = time.monotonic()
        outputs = self.reference.run(self._filled(row, min(_SHORT, extent)))
        return time.monotonic() - begun, outputs

    def _places(self, outputs: Mapping[str, Tensor], extent: int) -> dict[str, int]:
        """Return the dimension along the axis of each output that has it.

        Raises:
            ReferenceFailed: the model does not run at another extent.
            _NotTried: an output has it twice, another number of positions than the inputs, or ranks
                that differ.
        """
        length = min(_SHORT, extent // 2)
        (row,) = self._rows(extent, 1, seed=0)
        places = dict[str, int]()
        for name, short in self.reference.run(self._short(row, length)).items():
            if short.dim() != outputs[name].dim():
                raise _NotTried(f"output {name!r} has another rank at another extent")
            shapes = list(zip(short.shape, outputs[name].shape, strict=True))
            found = [at for at, (before, after) in enumerate(shapes) if before != after]
            if len(found) > 1:
                raise _NotTried(f"output {name!r} has the axis twice")
            if found and shapes[found[0]] != (length, extent):
                raise _NotTried(f"output {name!r} has other extents than the inputs")
            places |= {name: found[0]} if found else {}
        return places

    def error(self) -> float:
        """Return the largest error; infinite if outputs have other shapes or nothing runs."""
        count = 3 if self.batch is not None and not self.batch.alone else 1
        deadline, errors = time.monotonic() + _TRIAL_SECONDS, list[float]()
        for seed, (length, extent) in enumerate(_TRIALS):
            is_late = len(errors) >= _FEWEST_ERRORS and time.monotonic() > deadline
            if extent > self.axis.up_to or is_late:
                break
            lengths = [length, extent, max(1, extent // 2)][:count]
            with suppress(ReferenceFailed):
                errors += self._errors(self._rows(extent, count, seed), lengths)
        return max(errors, default=math.inf)

    def _rows(self, extent: int, count: int, seed: int) -> list[dict[str, Tensor]]:
        """Random rows at an extent; their masks begin with a one."""
        specs = {}
        for name, spec in self.subject.example.specs.items():
            shape = list(spec.shape)
            if name in self.axis.inputs:
                shape[self.axis.inputs[name].dimension] = extent
            specs[name] = TensorType(spec.dtype, tuple(shape))
        kind = replace(self.subject.example, specs=specs)
        rows = [kind.draw(None, seed=10 * seed + index) for index in range(count)]
        for index, row in enumerate(rows):
            for name in self.masks:
                at = self.axis.inputs[name].dimension
                row[name] = _mask(row[name], at, seed=seed + index)
                if self.is_blank:
                    row[name].zero_()
        return rows

    def _errors(self, rows: Sequence[Mapping[str, Tensor]], lengths: Sequence[int]) -> list[float]:
        """Return the error of each row, of one batch of all.

        Raises:
            ReferenceFailed: it does not run.
        """
        pairs = list(zip(rows, lengths, strict=True))
        alone = [self.reference.run(self._short(row, length)) for row, length in pairs]
        padded = self._run([self._filled(row, length) for row, length in pairs])
        return [
            self._error(expected, outputs, length)
            for expected, outputs, length in zip(alone, padded, lengths, strict=True)
        ]

    def _error(
        self, alone: Mapping[str, Tensor], padded: Mapping[str, Tensor], length: int
    ) -> float:
        """Return the error of one row; infinite if an output has another shape."""
        places = self.axis.outputs
        cut = dict(padded)
        for name, at in places.items():
            if at < padded[name].dim():  # the branch that ran may have another rank
                cut[name] = padded[name].narrow(at, 0, min(length, padded[name].shape[at]))
        is_same = all(cut[name].shape == x.shape for name, x in alone.items())
        return furthest(alone, cut) if is_same else math.inf

    def _run(self, rows: Sequence[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
        """Return outputs of each row: of one run of all, where the reference takes that.

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
                        n: x if (at := axes[n]) is None or at >= x.dim() else x.narrow(at, i, 1)
                        for n, x in together.items()
                    }
                    for i in range(len(rows))
                ]
        return [self.reference.run(row) for row in rows]

    def _short(self, row: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        parts = self.axis.inputs
        return {
            name: x.narrow(parts[name].dimension, 0, length).contiguous() if name in parts else x
            for name, x in row.items()
        }

    def _filled(self, row: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Return the row with padding behind ``length``."""
        filled = dict(row)
        for name, part in self.axis.inputs.items():
            filled[name] = row[name].clone()
            extent = row[name].shape[part.dimension]
            rest = filled[name].narrow(part.dimension, length, extent - length)
            if part.way == REPEAT:
                last = filled[name].narrow(part.dimension, length - 1, 1)
                rest.copy_(last.expand_as(rest))
            else:
                rest.zero_()
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
