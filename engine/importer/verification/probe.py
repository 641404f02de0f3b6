"""Runs of a model that is served whole, to find which extents its outputs follow.

likely shapes ──runs at?──> Example ──each open extent changed──> specs of inputs and outputs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.core.graph import OpGraph
from braid.core.tensor import Dim, TensorType
from braid.engine.importer.host.samples import Arrays
from braid.engine.importer.verification.example_inputs import GIVE_SAMPLES, Example, drawable
from braid.engine.importer.verification.given_samples import runs_on_samples
from braid.engine.importer.verification.likely_shapes import shape_candidates, wanted_shapes
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.ops.dtypes import is_strings, spec_of
from braid.engine.ops.whole import named_axes

_MOST_TRIALS = 100

Extents = Mapping[str, int]

OutputDims = dict[str, list[Dim | None]]
"""Shapes of outputs; None: an extent that differs between runs."""


@dataclass(frozen=True, slots=True)
class FoundAxes:
    """Specs that runs of the model have shown."""

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]  # extents that follow no input's have names of their own
    has_ranks: bool  # the outputs have the same ranks for all content


@dataclass(frozen=True, slots=True)
class Probe:
    """Runs of a model at several extents, to find those that its outputs have."""

    inputs: Mapping[str, TensorType]
    reference: ReferenceModel
    samples: Arrays  # tried in place of made-up content

    def run(self, given: Mapping[str, tuple[int, ...]]) -> FoundAxes:
        """Find specs of inputs and outputs.

        Raises:
            ModelImportError: the model runs at no shapes, or not on the samples.
        """
        if self.samples:
            return self._around(runs_on_samples(self.inputs, self.reference, given, self.samples))
        bare = OpGraph("model", self.inputs, {}, {}, ())
        failure = "nothing was tried"
        for count, specs in enumerate(shape_candidates(bare, given)):
            example = drawable(self.reference, specs)
            if isinstance(example, Example):
                return self._around(example)
            failure = example if count == 0 else failure
            if count >= _MOST_TRIALS:
                break
        options = wanted_shapes(self.inputs)
        give = f"; register it with shapes that it takes: {options}" if options else ""
        raise ModelImportError(
            f"it does not run at any shapes tried{give}; {GIVE_SAMPLES} ({failure})"
        )

    def _around(self, example: Example) -> FoundAxes:
        """Specs from runs that change the content, then one open extent at a time.

        Inputs without names for an axis (columns of a table, tokens and their mask) may take
        another extent of it together only; it gets one name then.
        """
        base = self._extents(example)
        runs = self._on_other_content(example)
        first = _shared(runs)
        followed = {output: list(dims) for output, dims in first.items()}

        def runs_elsewhere(*symbols: str) -> bool:
            """Give these symbols one other extent, and see what follows the first of them."""
            extent = base[symbols[0]]
            for other in (extent + 1, extent * 2):
                then = self._elsewhere(example, {**base, **dict.fromkeys(symbols, other)})
                if then is not None:
                    for output, dims in first.items():
                        _follow(followed[output], symbols[0], (extent, other), dims, then[output])
                    return True
            return False

        fixed = [symbol for symbol in base if not runs_elsewhere(symbol)]
        names: dict[Dim, Dim] = {}
        for alike in self._by_axis(fixed):
            if len({base[symbol] for symbol in alike}) == 1 and runs_elsewhere(*alike):
                fixed = [symbol for symbol in fixed if symbol not in alike]
                names |= dict.fromkeys(alike, alike[0])
        inputs = {
            name: TensorType(spec.dtype, tuple(names.get(dim, dim) for dim in spec.shape))
            for name, spec in self.inputs.items()
        }
        if fixed:  # nothing shows what follows these extents
            followed = {output: [None] * len(dims) for output, dims in followed.items()}
        taken = {dim for spec in inputs.values() for dim in spec.shape}
        specs = {
            output: TensorType(spec.dtype, named_axes(output, followed[output], taken))
            for output, spec in runs[0].items()
        }
        ranks = [{len(run[output].shape) for run in runs} for output in first]
        return FoundAxes(inputs, specs, all(len(some) == 1 for some in ranks))

    def _by_axis(self, symbols: Sequence[str]) -> list[list[str]]:
        """Those of the symbols that name the same axis of several inputs."""
        rank = max(len(spec.shape) for spec in self.inputs.values())
        at_axis = [
            dict.fromkeys(
                spec.shape[axis] for spec in self.inputs.values() if axis < len(spec.shape)
            )
            for axis in range(rank)
        ]
        groups = [[symbol for symbol in symbols if symbol in dims] for dims in at_axis]
        return [group for group in groups if len(group) > 1]

    def _extents(self, example: Example) -> dict[str, int]:
        return {
            dim: int(extent)
            for name, spec in self.inputs.items()
            for dim, extent in zip(spec.shape, example.specs[name].shape, strict=True)
            if isinstance(dim, str)
        }

    def _on_other_content(self, example: Example) -> list[dict[str, TensorType]]:
        """Specs of the outputs for several seeds, for many zeros and for zeros only.

        Zeros shorten outputs whose length is a count of elements, as NonZero's; the model's own
        words those that leave words out.

        Raises:
            ReferenceFailed: it does not run on the first.
        """
        runs = [self._shapes(example.draw(None, 0))]
        drawn = example.draw(None, seed=3)
        others = [example.draw(None, seed) for seed in (1, 2)]
        others += [{n: _sparse(t, factor) for n, t in drawn.items()} for factor in (0, 1)]
        if example.words:
            ranges = {**example.integers[0], **dict.fromkeys(example.words, 2)}
            others.append(replace(example, integers=(ranges,)).draw(None, 0))
        for content in others:
            with suppress(ReferenceFailed):
                runs.append(self._shapes(content))
        return runs

    def _shapes(self, content: Mapping[str, Tensor]) -> dict[str, TensorType]:
        """Specs of the outputs.

        Raises:
            ReferenceFailed: it does not run.
        """
        return {name: spec_of(tensor) for name, tensor in self.reference.run(content).items()}

    def _elsewhere(self, example: Example, extents: Extents) -> OutputDims | None:
        specs = {name: spec.bind(extents) for name, spec in self.inputs.items()}
        moved = replace(example, specs=specs, static_values={}, samples={})
        try:
            return _shared(self._on_other_content(moved))
        except ReferenceFailed:
            return None


def _sparse(tensor: Tensor, factor: int) -> Tensor:
    """No negative values, or with ``factor`` 0 nothing but zeros or empty strings."""
    if not factor:
        return torch.zeros_like(tensor)
    has_signs = tensor.dtype.is_signed and not is_strings(tensor)
    return tensor.clamp_min(0) if has_signs else tensor  # torch clamps few unsigned integers


def _shared(runs: Sequence[Mapping[str, TensorType]]) -> OutputDims:
    return {output: _common([run[output].shape for run in runs]) for output in runs[0]}


def _common(shapes: Sequence[Sequence[Dim]]) -> list[Dim | None]:
    """Extents that all shapes have; None where they differ, everywhere if their ranks do."""
    longest = max(shapes, key=len)
    if any(len(shape) != len(longest) for shape in shapes):
        return [None] * len(longest)
    return [some[0] if len(set(some)) == 1 else None for some in zip(*shapes, strict=True)]


def _follow(
    followed: list[Dim | None],
    symbol: str,
    extents: tuple[int, int],
    before: Sequence[Dim | None],
    after: Sequence[Dim | None],
) -> None:
    """Write the symbol where an output's extent follows it, None where it changes in another way.

    Args:
        followed: of the output, to be written.
        symbol: that had the first of ``extents`` ``before``, the other one ``after``.
        extents: see there.
        before: shape of the output; None: of any extent.
        after: the same.
    """
    if len(before) != len(after):
        followed[:] = [None] * len(followed)
        return
    for axis, change in enumerate(zip(before, after, strict=True)):
        if change[0] is not None and change[0] != change[1]:
            is_free = isinstance(followed[axis], int)
            followed[axis] = symbol if is_free and change == extents else None
