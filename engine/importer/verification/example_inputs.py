"""Inputs to check a model with: extents where the model leaves them open, and content.

    open extents ──candidates()──> shapes ──specialise──> fits? ──reference──> runs? ──> Example

A model rarely says which extents it accepts: OCR wants heights of 48 or multiples of 32, an audio
model one exact window. So likely ones are tried until both executors run the model.
"""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from braid.core.errors import ImportLimitExceeded, InvalidRequest, ModelImportError
from braid.core.graph import OpGraph
from braid.core.tensor import BYTES, TensorType
from braid.engine.importer.verification.likely_shapes import shape_candidates, wanted_shapes
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel, Words
from braid.engine.ops.dtypes import is_strings, strings_tensor, text_array, torch_dtype
from braid.engine.passes.body import Weights
from braid.engine.passes.specialise import specialise, static_inputs

_STATIC_NUMBERS = (16000, 8000, 1, 0)
_WIDE, _NARROW = 256, 2  # integers below these: indices of an embedding; masks
_BETWEEN = (128, 64, 32, 16, 8, 4)  # vocabularies of fewer
_MOST_WIDENED = 8  # inputs whose own range is looked for

_ANY_WORDS = ("a", "the quick brown fox", "42", "", "Zürich", "jumps over\nthe lazy dog", "-1.5")

_MOST_KEPT = 1 << 12  # elements of an input that the report keeps
_MOST_TRIALS = 400
_TRIAL_SECONDS = 120.0
_SECOND_TRIALS = 8
_LARGE_BYTES = 64 << 20  # of intermediate tensors


GIVE_SAMPLES = "if it wants content of its own kind, give some with --samples FILE.npz"


class ContentRefused(ModelImportError):
    """Refusal of a model that takes no content that was tried; another content may run."""


class TooMuchMemory(InvalidRequest):
    """Refusal of a model whose intermediate tensors do not fit into an import's memory."""


Below = Mapping[str, int]  # input -> what its integers are below; of others ``_NARROW``


@dataclass(frozen=True, slots=True)
class Example:
    """Shapes and kinds of content at which the model runs. Dimension 0 is 1 where it is open."""

    specs: Mapping[str, TensorType]
    static_values: Mapping[str, Tensor]
    integers: tuple[Below, ...] = ({},)  # ranges that the model takes; seeds take turns
    least: int = 0  # integer: divisors are drawn from 1
    positive: bool = False  # floats: absolute values of normal ones (a logarithm wants them)
    words: Words = field(default_factory=dict)  # what the model compares strings with, by input
    samples: Mapping[str, Tensor] = field(default_factory=dict)  # [samples, *shape], not drawn then

    @property
    def are_alike(self) -> bool:
        return bool(self.samples) and all(
            bool((tensor == tensor[:1]).all()) for tensor in self.samples.values()
        )

    def extents(self, inputs: Mapping[str, TensorType]) -> dict[str, int]:
        """Extents here of those that ``inputs``, the model's, leave open, by name."""
        return {
            dim: int(extent)
            for name, spec in inputs.items()
            for dim, extent in zip(spec.shape, self.specs[name].shape, strict=True)
            if isinstance(dim, str)
        }

    def draw(self, rows: int | None, seed: int) -> dict[str, Tensor]:
        """Return random inputs or samples by name; ``rows`` replaces dimension 0 of every input."""
        if self.samples:
            return {name: self._sample(name, rows, seed) for name in self.specs}
        generator = torch.Generator().manual_seed(seed)
        ranges = self.integers[seed % len(self.integers)]
        drawn = dict(self.static_values)
        for name, spec in self.specs.items():
            if name not in drawn:
                shape = spec.shape if rows is None else (rows, *spec.shape[1:])
                wanted, below = TensorType(spec.dtype, shape), ranges.get(name, _NARROW)
                drawn[name] = (
                    self._strings(name, wanted, below, generator)
                    if spec.dtype == BYTES
                    else self._random(wanted, below, generator)
                )
        return {name: drawn[name] for name in self.specs}

    def _sample(self, name: str, rows: int | None, seed: int) -> Tensor:
        if name in self.static_values:
            return self.static_values[name]
        tensor = self.samples[name]
        if rows is None:
            return tensor[seed % len(tensor)]
        flat = tensor.flatten(0, 1)
        return flat[(torch.arange(rows) + seed) % len(flat)]

    def content_to_keep(self, reference: ReferenceModel, *, is_whole: bool) -> dict[str, Any]:
        """Integers where it takes no zeros; all, if it runs whole or was tried on samples."""
        kept = {
            name
            for name, spec in self.specs.items()
            if name not in self.static_values and spec.dtype != BYTES
        }
        if not (is_whole or self.samples):
            kept = {name for name in kept if "INT" in self.specs[name].dtype}
            zeros = replace(self, integers=(dict.fromkeys(kept, 1),), least=0)
            if not kept or not isinstance(_outcome(reference, zeros), str):
                return {}
        drawn = self.draw(None, seed=0)
        return {n: drawn[n].tolist() for n in sorted(kept) if drawn[n].numel() <= _MOST_KEPT}

    def draw_largest(self, seed: int) -> dict[str, Tensor]:
        """Return inputs as ``draw`` does, but every integer is the largest of its range."""
        ranges, drawn = self.integers[seed % len(self.integers)], self.draw(None, seed)
        for name in ranges.keys() - self.static_values.keys():
            if drawn[name].dtype != torch.bool and not is_strings(drawn[name]):
                drawn[name] = torch.full_like(
                    drawn[name], _top(drawn[name].dtype, ranges[name]) - 1
                )
        return drawn

    def _strings(
        self, name: str, spec: TensorType, below: int, generator: torch.Generator
    ) -> Tensor:
        """Return the model's own words and others; of the integers below 2, its own words only."""
        words = tuple(self.words.get(name, ()))
        choice = {1: ("",), 2: words or _ANY_WORDS}.get(below, (*words, *_ANY_WORDS))
        shape = tuple(int(dim) for dim in spec.shape)
        drawn = torch.randint(0, len(choice), shape, generator=generator).reshape(-1).tolist()
        return strings_tensor(text_array([choice[index] for index in drawn], shape))

    def _random(self, spec: TensorType, below: int, generator: torch.Generator) -> Tensor:
        shape, kind = [int(dim) for dim in spec.shape], torch_dtype(spec.dtype)
        if not kind.is_floating_point:
            least = 0 if kind == torch.bool else self.least
            top = max(least + 1, _top(kind, below))
            return torch.randint(least, top, shape, generator=generator).to(kind)
        drawn = torch.randn(shape, generator=generator)
        return (drawn.abs() if self.positive else drawn).to(kind)


def _top(kind: torch.dtype, below: int) -> int:
    return min(below, 2 if kind == torch.bool else torch.iinfo(kind).max + 1)


@dataclass(frozen=True, slots=True)
class Trials:
    """A template and the reference, of which inputs are to show whether both run."""

    template: OpGraph
    weights: Weights
    reference: ReferenceModel
    memory_bytes: int  # most that intermediate tensors may take together

    def check(self, specs: Mapping[str, TensorType], static: Mapping[str, Tensor]) -> None:
        """``InvalidRequest`` if the template does not run at these shapes, or in its memory."""
        graph, _ = specialise(self.template, self.weights, specs, static)
        check_memory(graph, self.memory_bytes)


def find_example(trials: Trials, given: Mapping[str, tuple[int, ...]]) -> Example:
    """Find shapes and content at which both run; ``given`` shapes are known to work.

    Raises:
        ImportLimitExceeded: at the first shapes tried, the model takes too much memory.
        ContentRefused: nothing that was tried runs; gives the first and the last reason.
    """
    refusals: list[str | TooMuchMemory] = []
    deadline = time.monotonic() + _TRIAL_SECONDS
    candidates = _in_order_of_size(trials, given)
    for static, specs in itertools.islice(candidates, _MOST_TRIALS):
        outcome = _try(trials, specs, static)
        if isinstance(outcome, Example):
            return outcome
        refusals.append(outcome)
        if time.monotonic() > deadline:
            break
    if isinstance(refusals[0], TooMuchMemory):
        raise ImportLimitExceeded(str(refusals[0]), "memory_bytes")
    raise ContentRefused(_nothing_runs(trials.template, refusals))


def _in_order_of_size(
    trials: Trials, given: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[dict[str, Tensor], Mapping[str, TensorType]]]:
    """Content that makes large tensors comes last: static inputs may be sizes, of a Tile, say."""
    contents = list(_static_candidates(trials.template, given))
    if len(contents) > 1:
        first = next(shape_candidates(trials.template, given))
        bounded = replace(trials, memory_bytes=_LARGE_BYTES)
        contents.sort(key=lambda static: _is_large(bounded, first, static))
    for static in contents:
        for specs in shape_candidates(trials.template, given):
            yield static, specs


def _is_large(
    trials: Trials, specs: Mapping[str, TensorType], static: Mapping[str, Tensor]
) -> bool:
    try:
        trials.check(specs, static)
    except InvalidRequest as error:
        return isinstance(error, TooMuchMemory)
    return False


def second_example(trials: Trials, first: Example) -> Example | None:
    """Find an example with other open extents within a few tries; None if none runs."""
    open_names = {name for name, spec in trials.template.inputs.items() if not spec.is_static}
    for specs in itertools.islice(shape_candidates(trials.template, {}), _SECOND_TRIALS):
        if all(specs[name] == first.specs[name] for name in open_names):
            continue
        outcome = _try(trials, specs, first.static_values)
        if isinstance(outcome, Example):
            return outcome
    return None


def _nothing_runs(template: OpGraph, refusals: Sequence[str | TooMuchMemory]) -> str:
    first, last = refusals[0], refusals[-1]
    options = wanted_shapes(template.inputs)
    give = GIVE_SAMPLES
    if options:
        give = f"register it with shapes that it takes, numbers in place of the names: {options}; "
        give += GIVE_SAMPLES
    if len(refusals) == 1:
        return f"the model does not run: {first}; {give}"
    if not options:
        give = f"its shapes are fixed, so it takes other content than was tried; {give}"
    shapes = ", ".join(f"{name}: {spec}" for name, spec in template.inputs.items())
    return (
        f"the model does not run at any of {len(refusals)} input shapes tried ({shapes}); {give}. "
        f"The first reason: {first}. The last: {last}"
    )


def _try(
    trials: Trials, specs: Mapping[str, TensorType], static: Mapping[str, Tensor]
) -> Example | str | TooMuchMemory:
    """Return the example, or the reason why the model does not run on it."""
    try:
        trials.check(specs, static)
    except TooMuchMemory as error:
        return error
    except InvalidRequest as error:
        return str(error)
    return _drawable(trials.reference, specs, static)


def _drawable(
    reference: ReferenceModel, specs: Mapping[str, TensorType], static: Mapping[str, Tensor]
) -> Example | str:
    """Kinds of content that the reference takes; those that give finite outputs go first."""
    names = [
        name
        for name, spec in specs.items()
        if name not in static and not torch_dtype(spec.dtype).is_floating_point
    ]
    fallback: Example | str = ""
    lucky: Example | None = None
    for positive, least in ((False, 0), (True, 0), (True, 1))[: 3 if names else 2]:
        kind = Example(specs, static, ({},), least, positive, reference.words)
        for below in (_NARROW, _WIDE, 1) if names else (1,):  # nothing but zeros if need be
            example = replace(kind, integers=(dict.fromkeys(names, below),))
            outcome = _outcome(reference, example)
            if outcome is True:
                if below == _NARROW:
                    example = _widened(reference, example)
                if not _is_lucky(reference, example, names):
                    return example
                lucky = lucky or example
                continue
            if outcome is False and not isinstance(fallback, Example):
                fallback = example
            elif isinstance(outcome, str):
                fallback = fallback or outcome
    return lucky or fallback


def _is_lucky(reference: ReferenceModel, example: Example, names: Sequence[str]) -> bool:
    """Whether other integers of the example's range are refused: zeros divide, say."""
    if not names:
        return False
    zeros = replace(example, integers=(dict.fromkeys(names, 1),))
    if example.least == 0 and isinstance(_outcome(reference, zeros), str):
        return True
    try:
        for seed in range(1, 4):
            reference.run(example.draw(None, seed))
    except ReferenceFailed:
        return True
    return False


def _outcome(reference: ReferenceModel, example: Example) -> bool | str:
    """Whether all outputs are finite, or why the reference does not run on the example."""
    try:
        outputs = reference.run(example.draw(None, seed=0))
        if max(example.integers[0].values(), default=0) > _NARROW:  # not by luck
            reference.run(example.draw_largest(seed=0))
    except ReferenceFailed as error:
        return f"{reference.name}: {error}"
    return all(bool(torch.isfinite(output).all()) for output in outputs.values())


def _widened(reference: ReferenceModel, narrow: Example) -> Example:
    """Return the example with wider ranges to try before its own: of all inputs, then of one.

    Each is the largest that the model takes of that input: a vocabulary may be smaller than
    ``_WIDE``, and of several inputs one a mask or a kind. Rows of zeros and ones are much alike.
    """
    (ranges_of_all,) = narrow.integers
    numbers = [name for name in ranges_of_all if narrow.specs[name].dtype != "BOOL"]
    widest: dict[str, int] = {}
    for name in numbers[:_MOST_WIDENED]:
        for below in (_WIDE, *_BETWEEN):
            ranges = {**ranges_of_all, **widest, name: below}
            if _outcome(reference, replace(narrow, integers=(ranges,))) is True:
                widest[name] = below
                break
    alone = [{name: below} for name, below in widest.items()] if len(widest) > 1 else []
    wider = [{**ranges_of_all, **ranges} for ranges in (widest, *alone) if ranges]
    return replace(narrow, integers=(*wider, ranges_of_all))


def check_memory(graph: OpGraph, memory_bytes: int) -> None:
    """Raise ``TooMuchMemory`` if intermediate tensors take too much at any operator."""
    last_reader = {name: i for i, op in enumerate(graph.operators) for name in op.reads()}
    live = 0
    for i, op in enumerate(graph.operators):
        live += sum(graph.specs[name].size_bytes for name in op.outputs)
        if live > memory_bytes:
            results = ", ".join(str(graph.specs[name]) for name in op.outputs)
            raise TooMuchMemory(
                f"operator {op.name!r} ({op.kind}) makes {results}; with what else is alive then, "
                f"that is {live} bytes, and an import may use {memory_bytes} for intermediate "
                "tensors; raise BRAID_IMPORT_MEMORY_BYTES if the model is sound"
            )
        dead = {name for name in (*op.reads(), *op.outputs) if last_reader.get(name, i) == i}
        live -= sum(graph.specs[name].size_bytes for name in dead if name in graph.specs)


def _static_candidates(
    template: OpGraph, given: Mapping[str, tuple[int, ...]]
) -> Iterator[dict[str, Tensor]]:
    names = static_inputs(template)
    if not names:
        yield {}
        return
    specs = next(shape_candidates(template, given))
    for number in _STATIC_NUMBERS:
        yield {name: _filled(specs[name], number) for name in names}


def _filled(spec: TensorType, number: int) -> Tensor:
    kind = torch_dtype(spec.dtype)
    if not kind.is_floating_point and kind != torch.bool:
        number = min(number, torch.iinfo(kind).max)
    return torch.full([int(dim) for dim in spec.shape], number, dtype=kind)
