"""What a worker holds: loaded models, and executables ready to run.

    load(digest, artefact) ─> LoadedModel (template, weights, packed weights)
    prepare(id, digest, shapes, plan) ─> ReadyExecutable (static graph bound to kernels, laid out)

The front end names both: digests for models, numbers of its own choosing for executables, so
that it can tell a restarted worker the same things again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from braid.core.errors import InvalidArtefact, PreconditionFailed
from braid.core.graph import OpGraph
from braid.core.plan import EnginePart, StreamPlan, sequential_plan, verify_plan
from braid.core.precision import FP32, INT8
from braid.core.program import PlanToRun, ProgramKey
from braid.core.quantisation import Quantisation
from braid.core.runtimes import ONNXRUNTIME
from braid.core.tensor import TensorType, has_open_extents
from braid.engine.device import Backend, DevicePart, Prepared, open_whole
from braid.engine.importer.artefact import load_artefact
from braid.engine.importer.host.report import MODEL_FILE
from braid.engine.link.messages import ModelMemory
from braid.engine.link.shared_memory import SlotLayout, slot_layout
from braid.engine.ops.dtypes import arrays_of, tensor_of, tensors_of
from braid.engine.ops.whole import KIND, loose_graph, output_specs
from braid.engine.passes.body import Weights
from braid.engine.passes.precision import in_precision
from braid.engine.passes.quantised.calibrated import quantised_by
from braid.engine.passes.quantised.fusing import fuse_quantised
from braid.engine.passes.run import fuse_static
from braid.engine.passes.specialise import specialise
from braid.engine.program.engines import Whole
from braid.engine.program.input_ranges import input_ranges
from braid.engine.program.kernel import PackedWeights, Value
from braid.engine.program.model_file import opened_file
from braid.engine.program.program import NO_PARTS, BoundUnit, OpenedParts, Program
from braid.engine.runtime.arrays import (
    ARRAY_TYPES,
    Array,
    Arrays,
    empty_of,
    holds_floats,
    static_shape,
)
from braid.engine.runtime.yielding import YieldToRequests, in_thread, no_pause
from braid.engine.worker.any_shape import AnyShape, check_any_division
from braid.engine.worker.divided_rows import RowsOnLane, check_rows, divided
from braid.engine.worker.divided_rows import Run as RunRows
from braid.engine.worker.engine_parts import EngineParts, check_version
from braid.engine.worker.tensor_memory import memory_bytes, memory_of

log = logging.getLogger("braid.worker")

_SessionKey = tuple[str, str, range | None, int, str]
"""Runtime, digest, threads of a place (None: all), threads that call it at once, precision."""


UNIT_BYTES = 16 << 10  # of an executable beside tensors, by unit: kernels' code, Python

PROGRAMS_A_STEP = 32  # programs whose constants are counted before requests go first again


@dataclass(slots=True)
class LoadedModel:
    """Template and weights of a model, shared by all its executables."""

    artefact: Path
    template: OpGraph
    weights: Weights
    packed: PackedWeights = field(default_factory=PackedWeights)
    file_digest: str = ""  # of the file for other runtimes; "" if there is none
    file_bytes: int = 0
    programs: dict[tuple[ProgramKey, DevicePart | None], Program] = field(default_factory=dict)
    own: dict[tuple[ProgramKey, DevicePart | None], Sequence[Value]] = field(default_factory=dict)
    """Constants of programs that are not among the weights."""
    content: Mapping[str, Any] = field(default_factory=dict)  # of inputs, that it takes
    takes_any_shape: bool = False
    loose: tuple[OpGraph, Weights] | None = None  # ``ModelTable.loose``

    def shared(self) -> Iterator[Value]:
        yield from self.weights.values()
        yield from self.packed.values()

    def keep(self, key: ProgramKey, place: DevicePart | None, program: Program) -> None:
        shared = set(map(memory_of, self.shared()))
        constants = program.constants().values()
        self.own[key, place] = [one for one in constants if memory_of(one) not in shared]
        self.programs[key, place] = program

    def forget(self, program: Program) -> None:
        for key in [key for key, kept in self.programs.items() if kept is program]:
            del self.programs[key], self.own[key]

    def values(self, pause: YieldToRequests) -> Iterator[Value]:
        yield from self.shared()
        for at, own in enumerate(self.own.values()):
            yield from own
            if at % PROGRAMS_A_STEP == PROGRAMS_A_STEP - 1:
                pause()


@dataclass(slots=True, eq=False)
class ReadyExecutable:
    """A static graph under one plan, on all of the device or on one place of it."""

    digest: str
    program: Program
    prepared: Prepared
    layout: SlotLayout
    session: Whole | None = None  # runs instead of the plan, as long as it can
    place: DevicePart | None = None  # where it runs; None: on all of the device
    fallback: Prepared | None = None  # of a plan with parts in engines: runs what these refuse
    held: Mapping[int, int] = field(default_factory=dict)  # weights that parts hold: ``BoundUnit``
    has_fallen_back: bool = False  # a run was left to another plan, which was logged

    @property
    def needs_finite(self) -> bool:
        """Whether inputs that are NaN or infinite need the interpreter."""
        is_own = self.session is None and self.fallback is None
        return self.program.needs_finite or not is_own


class ModelTable:
    """All models and executables of one worker. Used by the device thread only."""

    def __init__(self, backend: Backend, pause: YieldToRequests = no_pause) -> None:
        self._backend = backend
        self._pause = pause
        self._models: dict[str, LoadedModel] = {}
        self._executables: dict[int, Sequence[ReadyExecutable]] = {}  # one for each place
        self._any_shape: dict[int, Sequence[AnyShape]] = {}  # as executables
        self._sessions: WeakValueDictionary[_SessionKey, Whole] = WeakValueDictionary()

    def load(self, digest: str, artefact: Path) -> None:
        """Read an artefact; does nothing if the model is loaded already."""
        if digest not in self._models:
            loaded = in_thread(lambda: load_artefact(artefact), self._pause)
            file = artefact / MODEL_FILE
            self.hold(
                digest,
                LoadedModel(
                    artefact,
                    loaded.graph,
                    loaded.weights,
                    file_digest=loaded.report.files.get(MODEL_FILE, ""),
                    file_bytes=file.stat().st_size if file.is_file() else 0,
                    content=loaded.report.content,
                    takes_any_shape=bool(loaded.report.static_inputs)
                    or has_open_extents(loaded.graph.inputs),
                ),
            )

    def hold(self, digest: str, model: LoadedModel) -> None:
        self._models[digest] = model

    def unload(self, digest: str) -> None:
        self._models.pop(digest, None)
        numbers = [n for n, copies in self._executables.items() if copies[0].digest == digest]
        for number in numbers:
            for ready in self._executables.pop(number):
                ready.prepared.release()
        for number in [n for n, copies in self._any_shape.items() if copies[0].digest == digest]:
            del self._any_shape[number]

    def model(self, digest: str) -> LoadedModel:
        """Raises ``PreconditionFailed`` if it is not loaded."""
        if digest not in self._models:
            raise PreconditionFailed(f"model {digest[:12]} is not loaded on this device")
        return self._models[digest]

    def session(
        self,
        runtime: str,
        digest: str,
        place: DevicePart | None = None,
        side_by_side: int = 1,
        precision: str = FP32,
    ) -> Whole:
        """Find a whole model in a runtime, shared while it is used, or open it.

        Places of one thread share one, which ``side_by_side`` threads call at once: its weights
        are there once. It is opened, which may take seconds, in a thread of its own. Raises
        ``PreconditionFailed`` without a model file, or if the runtime refuses it.
        """
        span = None if place is None else place.span if len(place.span) > 1 else range(1)
        callers = side_by_side if span == range(1) else 1
        key = runtime, digest, span, callers, precision
        session = self._sessions.get(key)
        if session is None:
            model = self.model(digest)
            backend = self._backend if place is None else place.backend
            session = in_thread(
                lambda: open_whole(
                    *(backend, runtime, model.artefact, model.file_digest, callers, precision),
                    any_shape=model.takes_any_shape,
                ),
                self._pause,
            )
            self._sessions[key] = session
        return session

    def program(self, key: ProgramKey, place: DevicePart | None = None) -> Program:
        """Find or bind a program; ``InvalidRequest`` if the model cannot run at these shapes."""
        model = self.model(key.digest)
        if (key, place) in model.programs:
            return model.programs[key, place]
        if place is None:
            program = self.bound(key)
        else:
            whole = self.program(key)
            program = place.backend.bind(
                *(whole.graph, whole.constants(), model.packed, self._pause),
                *(key.precision, dict(key.choices)),
            )
        model.keep(key, place, program)
        return program

    def bound(self, key: ProgramKey) -> Program:
        """As ``program``, for all of the device; only the caller keeps it."""
        packed = self.model(key.digest).packed
        graph, constants = self._to_bind(key)
        return self._backend.bind(
            graph, constants, packed, self._pause, key.precision, dict(key.choices)
        )

    def _to_bind(self, key: ProgramKey) -> tuple[OpGraph, Weights]:
        """Static graph of a program in its precision, and its constants."""
        packed = self.model(key.digest).packed
        graph, constants = self.static(key)
        if key.precision == INT8:
            how = Quantisation.parsed(key.quantisation)
            graph, constants = quantised_by(graph, constants, how, packed)
        has_kernels = self._backend.computes_on_integers
        graph, constants = fuse_quantised(graph, constants, packed, on_integers=has_kernels)
        graph, constants = in_precision(graph, constants, key.precision, packed)
        graph.verify()
        return graph, constants

    def static(self, key: ProgramKey) -> tuple[OpGraph, Weights]:
        """Static graph of a program in the types of the model's file, and its constants."""
        model = self.model(key.digest)
        template, weights, static = model.template, model.weights, tensors_of(static_arrays(key))
        is_loose = key.is_loose or any(0 in spec.shape for spec in key.specs.values())
        if is_loose and (loose := self.loose(key.digest)) is not None:
            (template, weights), static = loose, {}
        graph, constants = specialise(template, weights, key.specs, static, self._pause)
        return fuse_static(graph, constants), constants

    def loose(self, digest: str) -> tuple[OpGraph, Weights] | None:
        """Return a model as one operator of ONNX Runtime, whose results may have any shape.

        For tensors without elements, of which kernels and ONNX Runtime differ, and for extents
        that the file names alike, but that differ. None without a file, or with external data.
        """
        model = self.model(digest)
        whole = [unit.inputs[0] for unit in model.template.operators if unit.kind == KIND]
        if model.loose is None and whole:
            model.loose = loose_graph(model.template, model.weights[whole[0]])
        if model.loose is None:
            from braid.engine.onnx.division import guarded_bytes  # onnx comes along

            try:
                with opened_file(model.artefact, model.file_digest) as path:
                    if path.parent != model.artefact:  # its data lies in other files
                        return None
                    data = in_thread(lambda: guarded_bytes(path.read_bytes()), self._pause)
            except PreconditionFailed:
                return None
            content = tensor_of(np.frombuffer(bytearray(data), np.uint8))
            model.loose = loose_graph(model.template, content)
        return model.loose

    def content(self, key: ProgramKey) -> dict[str, Array]:
        """Content of inputs that is not made up: of static ones, and what the import has tried."""
        specs = key.specs
        tried = {
            name: _at_shape(np.array(values, ARRAY_TYPES[specs[name].dtype]), specs[name])
            for name, values in self.model(key.digest).content.items()
        }
        return {**tried, **static_arrays(key)}

    def has_places(self, count: int) -> bool:
        return count > 1 and bool(self._backend.places(count))

    def places(self, count: int) -> Sequence[DevicePart | None]:
        """Places for runs at once, None: all of the device; ``PreconditionFailed`` if too many."""
        if count == 1:
            return (None,)
        places = self._backend.places(count)
        if not places:
            raise PreconditionFailed(f"this device does not run {count} plans side by side")
        return places

    def prepare(self, number: int, copies: Sequence[ReadyExecutable]) -> None:
        self._executables[number] = copies

    def executable_of(self, to_run: PlanToRun, place: DevicePart | None) -> ReadyExecutable:
        key = to_run.program
        program = self.program(key, place)
        session = self._session(to_run, place) if to_run.runtime else None
        layout = slot_layout(program.graph.inputs, output_specs(program.graph))
        plan, opened, fallback = to_run.plan, NO_PARTS, None
        if plan is not None and plan.parts:
            fallback = self.ready(program, None, place)
            try:
                opened = self.open_parts(key, plan.parts)
            except (PreconditionFailed, InvalidArtefact) as error:
                facts = {"digest": key.digest}
                log.warning("runs under the sequential plan instead: %s", error, extra=facts)
                plan = fallback = None
        prepared = self.ready(program, plan, place, opened)
        held = dict(chain.from_iterable(unit.held for unit in opened.values()))
        return ReadyExecutable(
            *(key.digest, program, prepared, layout, session, place, fallback), held
        )

    def engine_parts(self, key: ProgramKey) -> EngineParts:
        """Read the model's file, to cut parts out of it; raises as ``EngineParts``."""
        model, program = self.model(key.digest), self.program(key)
        return in_thread(lambda: EngineParts(self._backend, model, key, program), self._pause)

    def open_parts(
        self, key: ProgramKey, parts: Sequence[EnginePart], of_file: EngineParts | None = None
    ) -> OpenedParts:
        """Open parts that run in one plan or stage, answering requests meanwhile.

        ``of_file``: where they are cut out, if that was read. Raises as ``EngineParts``.
        """
        if not parts:
            return NO_PARTS
        if parts[0].rows:
            return dict.fromkeys(parts, self._open_rows(key, parts))
        cut = of_file or self.engine_parts(key)
        return in_thread(lambda: {part: cut.open(part) for part in parts}, self._pause)

    def _open_rows(self, key: ProgramKey, parts: Sequence[EnginePart]) -> BoundUnit:
        """Open a model on a lane for each of ``parts``, which divide the rows of a batch.

        Raises ``PreconditionFailed`` if the device or the model cannot be divided so, or an engine
        refuses it, and ``InvalidArtefact`` if the file was changed.
        """
        program = self.program(key)
        check_rows(program.graph, sum(part.rows for part in parts))
        lanes = []
        for part, place in zip(parts, self.places(len(parts)), strict=True):
            if place is None:
                raise PreconditionFailed("rows are divided over two lanes at least")
            inputs = tuple((name, with_rows(spec, part.rows)) for name, spec in key.inputs)
            run = self._rows_run(replace(key, inputs=inputs), part, place, len(parts))
            lanes.append(RowsOnLane(place, part.rows, run))
        return divided(program, lanes)

    def _rows_run(
        self, key: ProgramKey, part: EnginePart, place: DevicePart, lanes: int
    ) -> RunRows:
        """What runs the rows of a part, by the program of these, on a place."""
        if not part.engine:
            graph, constants = self._to_bind(key)
            packed, choices = self.model(key.digest).packed, dict(key.choices)
            program = place.backend.bind(
                graph, constants, packed, self._pause, key.precision, choices
            )
            prepared = self.ready(program, None, place)

            def run(inputs: Arrays, outputs: Arrays) -> None:
                prepared.begin(inputs, outputs).finish()

            return run
        check_version(self._backend, part)
        self.check_runtime(part.engine, key)
        whole = self.session(part.engine, key.digest, place, lanes, key.precision)
        shapes = {name: empty_of(spec) for name, spec in key.inputs}
        in_thread(lambda: whole.ready_for(shapes), self._pause)
        return whole.run_into

    def open_any_shape(self, to_run: PlanToRun) -> Sequence[AnyShape]:
        """Open a model for runs at any of its shapes: one, or one for each place.

        Raises ``PreconditionFailed`` without a runtime, or if a request could end the process.
        """
        digest, runtime, count = to_run.program.digest, to_run.runtime, to_run.side_by_side
        template = self.model(digest).template
        if runtime == ONNXRUNTIME:
            graph, constants = self.static(to_run.program)
            check_any_division(template, graph, arrays_of(constants).get)
        return [
            AnyShape(digest, template, self.session(runtime, digest, place, count), place)
            for place in self.places(count)
        ]

    def keep_any_shape(self, number: int, copies: Sequence[AnyShape]) -> None:
        self._any_shape[number] = copies

    def any_shape(self, number: int) -> Sequence[AnyShape]:
        """One, or one for each place; ``PreconditionFailed`` for no such number."""
        if number not in self._any_shape:
            raise PreconditionFailed(f"executable {number} is not prepared on this device")
        return self._any_shape[number]

    def _session(self, to_run: PlanToRun, place: DevicePart | None) -> Whole | None:
        """Open a model in another runtime; None if that fails, since the plan can run."""
        digest, precision = to_run.program.digest, to_run.program.precision
        try:
            self.check_runtime(to_run.runtime, to_run.program)
            return self.session(to_run.runtime, digest, place, to_run.side_by_side, precision)
        except (PreconditionFailed, InvalidArtefact) as error:
            log.warning("runs under its plan instead: %s", error, extra={"digest": digest})
            return None

    def check_runtime(self, runtime: str, key: ProgramKey) -> None:
        """Raise PreconditionFailed if a request could end the process in a runtime."""
        program = self.program(key)
        self._backend.engine(runtime).check(program.graph, program.constant)

    def ready(
        self,
        program: Program,
        plan: StreamPlan | None,
        place: DevicePart | None = None,
        opened: OpenedParts = NO_PARTS,
    ) -> Prepared:
        """Verify a plan (None: the sequential plan) against the graph and prepare it."""
        if plan is None:
            plan = sequential_plan(len(program.units))
        verify_plan(plan, program.graph.predecessors())
        backend = self._backend if place is None else place.backend
        return backend.prepare(program, plan, self._pause, opened)

    def memory(self, digest: str, latest: ReadyExecutable | None = None) -> ModelMemory:
        """Memory of a model, of which ``latest`` was just prepared."""
        model = self.model(digest)
        sizes = memory_bytes(model.values(self._pause))
        gpu_weights = sizes.pop("cuda", 0)
        activations = 0 if latest is None else latest.prepared.activation_bytes or 0
        reserved = self._backend.reserved_bytes()
        sessions = [whole for (_, of, *_), whole in self._sessions.items() if of == digest]
        held = {id(holder): model.file_bytes for whole in sessions for holder in whole.holders}
        for ready in chain.from_iterable(self._executables.values()):
            held |= ready.held if ready.digest == digest else {}
        in_sessions = sum(held.values())
        return ModelMemory(sum(sizes.values()), gpu_weights, activations, reserved, in_sessions)

    def size_bytes(self, ready: ReadyExecutable) -> int:
        """Bytes that a release gives back; on a CPU all executables share memory of activations."""
        shared = list(self.model(ready.digest).shared())
        constants = ready.program.constants().values()
        weights = sum(memory_bytes(shared).values())
        own = sum(memory_bytes([*shared, *constants]).values()) - weights
        on_gpu = self._backend.reserved_bytes() is not None
        activations = ready.prepared.activation_bytes or 0 if on_gpu else 0
        copies = chain.from_iterable(self._executables.values())
        others = [one for one in copies if one is not ready]
        elsewhere = set(chain.from_iterable(one.held for one in others))
        held = sum(size for holder, size in ready.held.items() if holder not in elsewhere)
        beside = chain.from_iterable(self._any_shape.values())
        opened = [*(one.session for one in others), *(one.session for one in beside)]
        if ready.session is not None and all(one is not ready.session for one in opened):
            held += len(ready.session.holders) * self.model(ready.digest).file_bytes
        return len(ready.program.units) * UNIT_BYTES + own + held + activations

    def release(self, number: int) -> None:
        """Forget an executable, and its program if no other plan uses it."""
        self._any_shape.pop(number, None)
        copies = self._executables.pop(number, ())
        used = {id(ready.program) for others in self._executables.values() for ready in others}
        for copy in copies:
            copy.prepared.release()
            if copy.digest in self._models and id(copy.program) not in used:
                self._models[copy.digest].forget(copy.program)

    def executables(self, number: int) -> Sequence[ReadyExecutable]:
        """One, or one for each place; ``PreconditionFailed`` for no such number."""
        if number not in self._executables:
            raise PreconditionFailed(f"executable {number} is not prepared on this device")
        return self._executables[number]


def static_arrays(key: ProgramKey) -> dict[str, Array]:
    specs = key.specs
    return {
        name: np.frombuffer(bytearray(content), ARRAY_TYPES[specs[name].dtype]).reshape(
            static_shape(specs[name])
        )
        for name, content in key.static
    }


def _at_shape(array: Array, spec: TensorType) -> Array:
    """Repeat an array's elements as often as a shape has them, its row for each row of a batch."""
    shape = static_shape(spec)
    if array.ndim == len(shape) and list(array.shape[1:]) == shape[1:]:
        return array[np.arange(shape[0]) % max(1, len(array))] if shape else array
    return np.full(shape, array.reshape(-1)[0])


def seeded_inputs(graph: OpGraph, static_values: Arrays, seed: int) -> dict[str, Array]:
    """Inputs to time and compare plans with: normal floats, zeros for integers.

    Zeros are legal indices and lengths almost everywhere; divisors are ones.
    """
    random = np.random.default_rng(seed)
    divisors = {limits.name for limits in input_ranges(graph) if not limits.values.zero}
    inputs = {}
    for name, spec in graph.inputs.items():
        inputs[name] = static_values.get(name, empty_of(spec))
        if name not in static_values and holds_floats(inputs[name]):
            inputs[name][...] = random.standard_normal(inputs[name].shape, np.float32)
        elif name not in static_values:
            inputs[name].fill(name in divisors)
    return inputs


def result_memory(graph: OpGraph) -> Arrays | None:
    """Memory for a static graph's outputs; None if some follow the content, are texts or empty."""
    specs = output_specs(graph)
    if slot_layout(graph.inputs, specs).has_heap or not all(x.elements for x in specs.values()):
        return None
    return {name: empty_of(spec) for name, spec in specs.items()}


def with_rows(spec: TensorType, rows: int) -> TensorType:
    return replace(spec, shape=(rows, *spec.shape[1:]))
