"""Runs of a model that is served whole, to find which extents its outputs follow.

likely shapes ──runs at?──> Example ──each open extent changed──> specs of inputs and outputs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from braid.core.errors import ModelImportError
from braid.core.graph import OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.verification.example_inputs import Example, drawable
from braid.engine.importer.verification.likely_shapes import shape_candidates, wanted_shapes
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.ops.dtypes import is_strings, spec_of

_MOST_TRIALS = 100

Extents = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FoundAxes:
    """Specs that runs of the model have shown."""

    inputs: Mapping[str, TensorType]  # extents that outputs follow in odd ways are fixed
    outputs: Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class Probe:
    """Runs of a model at several extents, to find those that its outputs have."""

    inputs: Mapping[str, TensorType]
    reference: ReferenceModel

    def run(self, given: Mapping[str, tuple[int, ...]]) -> FoundAxes:
        """Find specs of inputs and outputs.

        Raises:
            ModelImportError: the model runs at no shapes, or output shapes depend on content.
        """
        bare = OpGraph("model", self.inputs, {}, {}, ())
        failure = "nothing was tried"
        for count, specs in enumerate(shape_candidates(bare, given)):
            example = drawable(self.reference, specs)
            if isinstance(example, Example):
                return self._around(example)
            failure = example
            if count >= _MOST_TRIALS:
                break
        options = wanted_shapes(self.inputs)
        give = f"; register it with shapes that it takes: {options}" if options else ""
        raise ModelImportError(f"it does not run at any shapes tried{give} ({failure})")

    def _around(self, example: Example) -> FoundAxes:
        """Specs from runs that change one open extent at a time."""
        base = self._extents(example)
        first = self._shapes(example, seeds=3)
        self._check_sparse(example, first)
        followed = {name: list(spec.shape) for name, spec in first.items()}
        fixed: dict[str, int] = {}
        for symbol, extent in base.items():
            other = self._elsewhere(example, {**base, symbol: extent + 1 if extent > 1 else 2})
            if other is None or not _follows(symbol, base, first, other, followed):
                fixed[symbol] = extent
        inputs = {name: spec.bind(fixed) for name, spec in self.inputs.items()}
        outputs = {
            name: TensorType(spec.dtype, tuple(followed[name])).bind(fixed)
            for name, spec in first.items()
        }
        return FoundAxes(inputs, outputs)

    def _extents(self, example: Example) -> dict[str, int]:
        return {
            dim: int(extent)
            for name, spec in self.inputs.items()
            for dim, extent in zip(spec.shape, example.specs[name].shape, strict=True)
            if isinstance(dim, str)
        }

    def _shapes(self, example: Example, seeds: int) -> dict[str, TensorType]:
        """Specs of the outputs, the same for all seeds.

        Raises:
            ModelImportError: they are not.
            ReferenceFailed: it does not run.
        """
        runs = [self.reference.run(example.draw(None, seed)) for seed in range(seeds)]
        specs = [{name: spec_of(tensor) for name, tensor in run.items()} for run in runs]
        for later in specs[1:]:
            odd = [name for name in later if later[name] != specs[0][name]]
            if odd:
                raise ModelImportError(f"the shape of output {odd[0]!r} depends on content")
        return specs[0]

    def _check_sparse(self, example: Example, first: Mapping[str, TensorType]) -> None:
        """Run on many zeros and on zeros only, for which counts of found positions become smaller.

        Raises:
            ModelImportError: the shapes of the outputs change with it.
        """
        drawn = example.draw(None, seed=3)
        for factor in (0, 1):
            content = {name: _sparse(tensor, factor) for name, tensor in drawn.items()}
            try:
                results = self.reference.run(content)
            except ReferenceFailed:
                continue
            odd = [name for name, tensor in results.items() if spec_of(tensor) != first[name]]
            if odd:
                raise ModelImportError(f"the shape of output {odd[0]!r} depends on content")

    def _elsewhere(self, example: Example, extents: Extents) -> dict[str, TensorType] | None:
        specs = {name: spec.bind(extents) for name, spec in self.inputs.items()}
        moved = replace(example, specs=specs, static_values={})
        try:
            return self._shapes(moved, seeds=1)
        except ReferenceFailed:
            return None


def _sparse(tensor: Tensor, factor: int) -> Tensor:
    """No negative values, or with ``factor`` 0 none but zeros; empty strings are zeros, too."""
    if is_strings(tensor):
        return tensor if factor else torch.zeros_like(tensor)
    return (tensor.clamp_min(0) * factor).to(tensor.dtype)


def _follows(
    symbol: str,
    base: Extents,
    first: Mapping[str, TensorType],
    other: Mapping[str, TensorType],
    followed: dict[str, list[int | str]],
) -> bool:
    """Write the symbol where an output extent follows it; False if one changes in another way."""
    changed = base[symbol] + 1 if base[symbol] > 1 else 2
    marks = []
    for name, spec in first.items():
        if len(other[name].shape) != len(spec.shape):
            return False
        for axis, (old, new) in enumerate(zip(spec.shape, other[name].shape, strict=True)):
            if old == new:
                continue
            if (old, new) != (base[symbol], changed):
                return False
            marks.append((name, axis))
    for name, axis in marks:
        followed[name][axis] = symbol
    return True
