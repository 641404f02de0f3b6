"""Parts of a model in engines: cut out of the file that the import kept, and bound as one unit.

units ──border──> tensors of the file ──ModelParts.cut──> ONNX ──Engine.compile──> BoundUnit
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from braid.core.errors import PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.plan import EnginePart
from braid.core.precision import FP32
from braid.core.program import ProgramKey
from braid.core.runtimes import RUNTIMES
from braid.core.tensor import BATCH, TensorType
from braid.engine.device import Backend
from braid.engine.ops.dtypes import copy_into
from braid.engine.program.engines import Whole
from braid.engine.program.kernel import Kernel, Run
from braid.engine.program.model_file import opened_file
from braid.engine.program.program import BoundUnit, Program
from braid.engine.runtime.arrays import Array, empty_of
from braid.engine.timing.comparison import errors

if TYPE_CHECKING:
    from braid.engine.program.model_part import Border
    from braid.engine.worker.models import LoadedModel


def border_of(graph: OpGraph, units: Sequence[int]) -> tuple[list[str], list[str]]:
    """Values that some units read from others, constants aside, and those that others read."""
    operators = [graph.operators[unit] for unit in units]
    made = {value for operator in operators for value in operator.outputs}
    inside = set(units)
    outside = {
        value
        for at, operator in enumerate(graph.operators)
        if at not in inside
        for value in operator.inputs
    } | set(graph.outputs.values())
    read = dict.fromkeys(value for operator in operators for value in operator.inputs if value)
    inputs = [value for value in read if value not in made and value not in graph.constants]
    outputs = [value for operator in operators for value in operator.outputs if value in outside]
    return inputs, outputs


def check_version(backend: Backend, part: EnginePart) -> None:
    """Raise ``PreconditionFailed`` unless the engine is here as it was when the plan was made."""
    if part.engine not in backend.runtimes:
        raise PreconditionFailed(f"{RUNTIMES.get(part.engine, part.engine)} is not installed")
    engine = backend.engine(part.engine)
    if engine.version != part.version:
        raise PreconditionFailed(
            f"{RUNTIMES[part.engine]} is {engine.version}, and the plan is of {part.version}"
        )


class EngineParts:
    """Opens parts of one program. Holds the model's file in memory."""

    def __init__(
        self, backend: Backend, model: LoadedModel, key: ProgramKey, program: Program
    ) -> None:
        """Read the model's file.

        Raises ``PreconditionFailed`` without one, or if the program computes otherwise than it, and
        ``InvalidArtefact`` if it was changed.
        """
        import onnx  # a tenth of a second that only parts need

        from braid.engine.program.model_part import ModelParts

        if key.precision != FP32:
            raise PreconditionFailed("parts of a model run in FP32 only")
        self._backend = backend
        self._program = program
        with opened_file(model.artefact, model.file_digest) as path:
            self._parts = ModelParts(onnx.load(str(path)), program.graph.inputs)
        firsts = {spec.shape[0] for spec in program.graph.inputs.values() if spec.shape}
        self._rows = firsts.pop() if len(firsts) == 1 else None
        self._names = {
            value: [name for name in names if name in self._parts.tensors]
            for value, names in program.graph.sources.items()
        }

    @property
    def values(self) -> frozenset[str]:
        """Values of the static graph that can be borders."""
        return frozenset(value for value, names in self._names.items() if names)

    def open(self, part: EnginePart) -> BoundUnit:
        """Compile a part, in a thread of its own, as it takes long.

        Raises ``PreconditionFailed`` if the engine is of another version, or refuses the part.
        """
        backend, program, graph = self._backend, self._program, self._program.graph
        check_version(backend, part)
        engine = backend.engine(part.engine)
        engine.check(graph, program.constant)
        values, results = border_of(graph, part.units)
        values += [name for name in graph.inputs if name not in values]
        if not all(self._names.get(value) for value in (*values, *results)):
            raise PreconditionFailed("the border of a part is no tensor of the model's file")
        value_of = {self._names[value][-1]: value for value in values}
        given = {name: graph.spec(value) for name, value in value_of.items()}
        outputs = {self._names[value][-1]: graph.spec(value) for value in results}
        equal = {name: last for last, value in value_of.items() for name in self._names[value][:-1]}
        model, read = self._parts.cut(self._of_any_rows(given), self._of_any_rows(outputs), equal)
        if not read:
            raise PreconditionFailed("the part reads nothing: its outputs are constants")
        whole = engine.compile(model, backend.engine_place(threads=part.threads))
        given = {name: given[name] for name in read}
        whole.ready_for({name: empty_of(spec) for name, spec in given.items()})
        return BoundUnit(
            Kernel(part.engine, _run(whole, given, outputs), needs_finite=True),
            inputs=tuple(program.slots[value_of[name]] for name in read),
            outputs=tuple(program.slots[value] for value in results),
            work_us=sum(program.units[unit].work_us for unit in part.units),
            held=tuple((id(holder), len(model)) for holder in whole.holders),
        )

    def _of_any_rows(self, border: Border) -> dict[str, TensorType]:
        """A border that leaves the batch open: equal parts of other sizes are equal files."""
        return {
            name: replace(spec, shape=(BATCH, *spec.shape[1:]))
            if spec.shape[:1] == (self._rows,)
            else spec
            for name, spec in border.items()
        }


MOST_ERROR = 1e-3  # relative to the largest element, that rounding may make


def check_part(part: BoundUnit, values: Mapping[int, Array]) -> None:
    """Compare a run with ``values``; ``PreconditionFailed`` if it makes something else."""
    made = part.kernel.function(*[values[slot] for slot in part.inputs])
    got = {str(slot): array for slot, array in zip(part.outputs, made, strict=True)}
    _, error = errors(got, {name: values[int(name)] for name in got})
    if not error <= MOST_ERROR:
        raise PreconditionFailed(f"its outputs differ by {error:.2g} of the largest element")


def _run(whole: Whole, given: Mapping[str, TensorType], outputs: Mapping[str, TensorType]) -> Run:
    dense: dict[str, Array] = {}  # of inputs in another layout: always there, so bound once

    def run(*arrays: Array) -> tuple[Array, ...]:
        feeds = dict(zip(given, arrays, strict=True))
        apart = {name: array for name, array in feeds.items() if not array.flags.c_contiguous}
        for name in apart:
            if name not in dense:
                dense[name] = empty_of(given[name])
            feeds[name] = dense[name]
        if apart:
            copy_into(feeds, apart)
        results = {name: empty_of(spec) for name, spec in outputs.items()}
        whole.run_into(feeds, results)
        return tuple(results.values())

    return run
