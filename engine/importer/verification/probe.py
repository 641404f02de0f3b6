"""Which extents the outputs of a model follow: runs of one that is served whole.

likely shapes ──runs at?──> Example ──each open extent changed──> specs of inputs and outputs

An extent is fixed, or follows an input's, if the file states that and no run contradicts, or if
runs show it: those at other extents of all inputs, of an output whose lengths no content decides.
Any other stays open.

Of a verified template its shapes tell, at two or three times each extent in turn: an extent that is
the same at all extents tried is fixed; one that equals an input's open extent each time takes its
name; any other gets a name of its own.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.tensor import BATCH, Dim, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.host.samples import Arrays
from braid.engine.importer.verification.example_inputs import Example, Trials, find_example
from braid.engine.importer.verification.given_samples import sampled_example
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.importer.verification.verify import OTHER_SCALES, Subject
from braid.engine.ops.dtypes import is_strings, spec_of
from braid.engine.ops.whole import named_axes, output_specs
from braid.engine.passes.specialise import specialise

Extents = Mapping[str, int]

OutputDims = dict[str, list[Dim | None]]  # None: it differs between runs, or is not stated


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
    declared: OutputDims = field(default_factory=dict)  # as the file states them
    by_content: Collection[str] = ()  # outputs whose extents content may decide

    def run(self, given: Mapping[str, tuple[int, ...]]) -> FoundAxes:
        """Raises ``ModelImportError`` if the model runs at no shapes, or not on the samples."""
        bare = OpGraph("model", self.inputs, {}, {}, ())  # whose operators take no memory
        trials = Trials(bare, {}, self.reference, 0)
        if self.samples:
            return self._around(sampled_example(trials, given, self.samples))
        return self._around(find_example(trials, given))

    def _around(self, example: Example) -> FoundAxes:
        """Specs from runs that change the content, then one open extent at a time.

        Inputs without names for an axis (tokens and their mask) may take another extent of it
        together only; it gets one name then.
        """
        base = example.extents(self.inputs)
        runs = self._on_other_content(example)
        seen = [(base, _shared(runs))]

        def runs_elsewhere(*symbols: str) -> bool:
            """Give these symbols one other extent, and see what the outputs are then."""
            extent = base[symbols[0]]
            for other in (extent + 1, extent * 2):
                extents = {**base, **dict.fromkeys(symbols, other)}
                if (then := self._elsewhere(example, extents)) is not None:
                    seen.append((extents, then))
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
        taken = {dim for spec in inputs.values() for dim in spec.shape}
        specs = {}
        for output, spec in runs[0].items():
            is_shown = not fixed and output not in self.by_content
            dims = [
                None if dim is None else names.get(dim, dim)
                for dim in self._dims(output, seen, is_shown=is_shown)
            ]
            specs[output] = TensorType(spec.dtype, named_axes(output, dims, taken))
        ranks = [{len(run[output].shape) for run in runs} for output in specs]
        return FoundAxes(inputs, specs, all(len(some) == 1 for some in ranks))

    def _dims(
        self, output: str, seen: Sequence[tuple[Extents, OutputDims]], *, is_shown: bool
    ) -> Iterator[Dim | None]:
        """Extents of an output by what the file states and what was seen at extents of inputs."""
        base, first = seen[0]
        declared, rank = self.declared.get(output, []), len(first[output])
        stated = declared if len(declared) == rank else [None] * rank
        for axis, dim in enumerate(stated):
            found = [
                (extents, dims[output][axis] if len(dims[output]) == rank else None)
                for extents, dims in seen
            ]
            wanted = [dim, *([found[0][1], *base] if is_shown else [])]
            # a name that is of no input's stays, for an extent that is open
            yield next((one for one in wanted if _fits(one, found)), _as_name(dim, base))

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

    def _on_other_content(self, example: Example) -> list[dict[str, TensorType]]:
        """Specs for several seeds, many zeros, zeros only; ``ReferenceFailed`` by the first.

        Zeros shorten outputs whose length is a count of elements, as NonZero's; the model's own
        words those that leave words out.
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


def _fits(dim: Dim | None, found: Iterable[tuple[Extents, Dim | None]]) -> bool:
    """Whether an extent is a number, or an input's extent, in all that was found."""
    return dim is not None and all(
        extent == (extents.get(dim) if isinstance(dim, str) else dim) for extents, extent in found
    )


def _as_name(dim: Dim | None, taken: Container[str]) -> str | None:
    """The file's name of an extent, unless it stands for another one here."""
    return dim if isinstance(dim, str) and dim != BATCH and dim not in taken else None


def with_output_specs(subject: Subject, batch: BatchAxes | None) -> OpGraph:
    """The verified template with a symbolic spec for each output; ``batch``: None without one."""
    template = subject.template
    extents = subject.extents
    runs = [(extents, _output_shapes(subject, extents))]
    for symbol in extents:
        for scale in OTHER_SCALES:
            scaled = {**extents, symbol: extents[symbol] * scale}
            with suppress(InvalidRequest):  # it does not run there
                runs.append((scaled, _output_shapes(subject, scaled)))
                break
    specs = {}
    for name, value in template.outputs.items():
        first = runs[0][1][name]
        axis = batch.outputs.get(name) if batch else None
        shape: list[Dim] = [
            BATCH
            if at == axis
            else _extent(
                [(extents, shapes[name].shape[at]) for extents, shapes in runs], f"{name}_{at}"
            )
            for at in range(len(first.shape))
        ]
        specs[value] = TensorType(first.dtype, tuple(shape))
    return replace(template, specs={**template.specs, **specs})


def _output_shapes(subject: Subject, extents: Mapping[str, int]) -> dict[str, TensorType]:
    """Specs at batch 1, with names where content decides; ``InvalidRequest`` if it does not run."""
    inputs = subject.inputs_at(extents)
    graph, _ = specialise(subject.template, subject.weights, inputs, subject.example.static_values)
    return output_specs(graph)


def _extent(runs: list[tuple[Mapping[str, int], Dim]], name: str) -> Dim:
    """One extent over all runs: (open extents of the run, extent of the output)."""
    symbols, first = runs[0]
    if isinstance(first, str):
        return first
    wanted: list[Dim] = [first, *symbols] if len(runs) > 1 or not symbols else []
    return next((dim for dim in wanted if _fits(dim, runs)), name)
