"""A network that is ready to run in this process: what ``braid.compile`` and ``braid.load`` return.

Rows are cut into batches of the compiled sizes and padded as is cheapest by their measured
latencies, as a server does it. Calls shorter than a compiled length may be padded to it
(``braid.library.lengths``). Other shapes are left to ``braid.library.other_shapes``, if possible
all rows at once.
"""

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from braid.core.cover import Cover
from braid.core.errors import OtherExtents, PreconditionFailed
from braid.core.inputs import ShapeClass, check_inputs
from braid.core.tensor import TensorType
from braid.engine.ops.whole import run_named
from braid.engine.runtime.arrays import Arrays
from braid.library.compiled import Compiled, NetworkSchedule
from braid.library.device_thread import DEVICE_THREADS, Executable
from braid.library.lengths import Lengths
from braid.library.other_shapes import OtherShapes
from braid.library.tensors import GivenInputs, Inputs, given_inputs, joined, padded

MAX_ROUTES = 256


@dataclass(frozen=True, slots=True)
class _Planned:
    """One of the compiled shapes."""

    batch_sizes: Sequence[int]
    cover: Cover  # of rows by those
    executables: Mapping[int, Executable]  # by batch size


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows of a call that run together."""

    first: int
    rows: int
    size: int
    shape_class: ShapeClass
    compiled: Executable | None  # None: nothing was compiled for the class
    inputs: frozenset[str]  # that it takes

    @property
    def is_full(self) -> bool:
        return self.rows == self.size


@dataclass(frozen=True, slots=True)
class _Route:
    """How inputs of some shapes run."""

    batches: Sequence[_Batch]
    is_whole: bool  # one batch, of all rows as they come


class Network:
    """A compiled model: call it with arrays, from any thread. ``close`` or ``with`` frees it."""

    def __init__(self, name: str, compiled: Compiled) -> None:
        """Prepare the plans of all batch sizes."""
        imported = compiled.imported
        self.name = name
        self.inputs: Mapping[str, TensorType] = imported.graph.inputs
        self.outputs = tuple(imported.graph.outputs)
        self.batched = imported.report.batch is not None
        self.batch_sizes: Sequence[int] = compiled.batch_sizes
        self.static_inputs: Sequence[str] = imported.report.static_inputs
        shapes = (compiled, *compiled.lengths)
        self.remarks: Sequence[str] = tuple(remark for one in shapes for remark in one.remarks)
        self.seen_shapes: dict[Hashable, tuple[ShapeClass, int]] = {}
        self.known_classes: dict[ShapeClass, ShapeClass] = {}
        self._names = tuple(self.inputs)
        self._axes = imported.report.batch.outputs if imported.report.batch else {}
        self._compiled = compiled
        self._routes: dict[Hashable, _Route] = {}
        self._planned: dict[ShapeClass, _Planned] = {}  # the main shape first
        self._lengths: Lengths | None = None  # that calls are padded to
        self._lock = threading.Lock()  # of everything above that changes
        self._is_loaded = self._is_closed = False
        self._device = DEVICE_THREADS.use(compiled.options, self)
        self.other_shapes = OtherShapes(self._device, compiled)  # in the device thread
        try:
            self._device.call(self._load)
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        imported = self._compiled.imported
        self._device.keep(imported.digest, imported.artefact)
        self._is_loaded = True
        shapes = (self._compiled, *self._compiled.lengths)
        for compiled in shapes:
            self._load_shape(compiled)
        self.other_shapes.open()
        axis = imported.padded_axis if self._compiled.lengths else None
        if axis is not None:
            has_session = self.other_shapes.has_session
            compiled_by = dict(zip(self._planned, shapes, strict=True))
            self._lengths = Lengths(axis, compiled_by, has_session=has_session)

    def _load_shape(self, compiled: Compiled) -> None:
        shape_class, executables = compiled.imported.shape_class, dict[int, Executable]()
        sizes = compiled.batch_sizes
        cover = Cover([(size, compiled.expected_us(size)) for size in sizes])
        self._planned[shape_class] = _Planned(sizes, cover, executables)
        for size in sizes:
            executables[size] = self._device.prepare(compiled.to_run(shape_class, size))

    @property
    def _main(self) -> _Planned:
        return next(iter(self._planned.values()))

    def __call__(self, given: Inputs) -> Any:
        """Run the network.

        Args:
            given: an array, or arrays by the names of the inputs; numpy's or torch's, of strings
                numpy's (``str``, or bytes of UTF-8).

        Returns:
            the only output, or all by name; numpy arrays if all inputs are, and of strings.

        Raises:
            InvalidTensor: naming the input that the model does not take, and what it takes.
            PreconditionFailed: the network was closed.
        """
        inputs = given_inputs(given, self._names)
        with self._lock:  # a network is not closed while it is computing
            if self._compiled.imported.has_strings:
                return self._strings_run(inputs)
            length = None
            if self._lengths is not None:
                inputs, length = self._lengths.padded(inputs)
            route = None if self.static_inputs else self._routes.get(inputs.looks)
            if route is None:
                route = self._route(inputs)
            try:
                results = self._results(route, inputs)
            except OtherExtents:
                results = self._results(self._route(inputs, is_alone=True), inputs)
        if self._lengths is not None and length is not None:
            results = self._lengths.cut(results, length)
        if len(self.outputs) == 1:
            return inputs.like_given(results[self.outputs[0]])
        return {name: inputs.like_given(results[name]) for name in self.outputs}

    def _results(self, route: _Route, inputs: GivenInputs) -> Arrays:
        if route.is_whole:
            return self._run(route.batches[0], inputs.arrays)
        return self._run_in_parts(route.batches, inputs.arrays)

    def _strings_run(self, inputs: GivenInputs) -> Any:
        """Run a model that takes or gives strings on all rows at once, as a server does."""
        self._check_open()
        check_inputs(self, inputs.unchecked())
        models, digest = self._device.models, self._compiled.imported.digest

        def run() -> dict[str, Any]:
            loose = models.loose(digest)
            assert loose is not None, "a model with strings is one operator"
            results = run_named(*loose, inputs.arrays)
            return {name: np.asarray(result) for name, (result, _) in results.items()}

        arrays = self._device.call(run)
        found = {name: inputs.like_given(array) for name, array in arrays.items()}
        return found[self.outputs[0]] if len(self.outputs) == 1 else found

    def _run_in_parts(self, batches: Sequence[_Batch], inputs: Arrays) -> Arrays:
        """Run several batches, or one that is padded; returns their outputs, joined."""
        parts = []
        for batch in batches:
            given = {name: array for name, array in inputs.items() if name in batch.inputs}
            if self.batched:
                for name, array in given.items():
                    given[name] = padded(array, batch.first, batch.rows, batch.size)
            parts.append(self._run(batch, given))
        return {
            name: joined([part[name] for part in parts], self._axes.get(name))
            for name in self.outputs
        }

    def _run(self, batch: _Batch, given: Arrays) -> Arrays:
        """Run one batch on its rows; returns new arrays, without those of padding."""
        backend, compiled = self._device.backend, batch.compiled
        outputs: Arrays = {}
        if compiled is None:
            key = batch.shape_class, batch.size
            results = self._device.call(lambda: self.other_shapes.run(key, given))
        else:
            outputs = compiled.new_outputs()
            results = self._device.call(lambda: compiled.run(backend, given, outputs))
        if results is not outputs:  # those of the device thread are not the caller's
            outputs = {name: array.copy() for name, array in results.items()}
        if not batch.is_full:
            cut = dict(outputs)
            for name, axis in self._axes.items():
                if axis is not None:
                    rows = batch.rows * (cut[name].shape[axis] // batch.size)
                    cut[name] = cut[name][(slice(None),) * axis + (slice(rows),)]
            return cut
        return outputs

    def _check_open(self) -> None:
        if self._is_closed:
            raise PreconditionFailed(f"the network {self.name} is closed")

    def _route(self, inputs: GivenInputs, *, is_alone: bool = False) -> _Route:
        """Check inputs and find the plans for their shapes."""
        self._check_open()
        shape_class, all_rows = check_inputs(self, inputs.unchecked(), is_alone=is_alone)
        planned = self._planned.get(shape_class)
        like, batches, first = planned or self._main, list[_Batch](), 0
        while first < all_rows or not batches:
            left = max(all_rows - first, 1)
            is_cut = self.batched and not shape_class.is_alone
            size = like.batch_sizes[like.cover.first(left)] if is_cut else 1
            if planned is None and all_rows and self.other_shapes.takes_rows:
                size = all_rows
            rows = min(all_rows - first, size)
            compiled = None if planned is None else planned.executables[size]
            names = self._names if compiled is None else compiled.ready.program.graph.inputs
            batches.append(_Batch(first, rows, size, shape_class, compiled, frozenset(names)))
            first += rows
        takes_all = inputs.arrays.keys() == batches[0].inputs
        is_whole = len(batches) == 1 and batches[0].is_full and takes_all
        route = _Route(batches, is_whole)
        if not self.static_inputs and len(self._routes) < MAX_ROUTES:
            self._routes[inputs.looks] = route
        return route

    @property
    def plan_ids(self) -> dict[int, str]:
        """Names of the plans of the main shape, by batch size, as a server answers them."""
        return {size: ready.plan_id for size, ready in self._main.executables.items()}

    @property
    def schedule(self) -> NetworkSchedule:
        """Schedule of the smallest batch size; PreconditionFailed: none was found."""
        if not self.schedules:
            why = "; ".join(self.remarks) or "it was compiled on another device"
            raise PreconditionFailed(f"the network {self.name} has no schedule: {why}")
        return self.schedules[min(self.schedules)]

    @property
    def schedules(self) -> dict[int, NetworkSchedule]:
        """Schedules of the main shape by batch size."""
        compiled = self._compiled
        return {
            size: NetworkSchedule(self.name, schedule, compiled.graphs[size])
            for size, schedule in sorted(compiled.schedules.items())
        }

    def save(self, folder: str | Path) -> None:
        """Write the network to a folder, which ``braid.load`` reads on this or another machine."""
        from braid.library.saving import save

        save(self.name, self._compiled, Path(folder))

    def close(self) -> None:
        """Free weights and threads; runs under way end first. Closing again does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._routes.clear()
                self._device.call(self._unload)
                DEVICE_THREADS.leave(self)

    def _unload(self) -> None:
        self.other_shapes.close()
        for planned in self._planned.values():
            for executable in planned.executables.values():
                self._device.release(executable)
        self._planned.clear()
        if self._is_loaded:
            self._device.let_go(self._compiled.imported.digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
        sizes = ", ".join(map(str, self.batch_sizes))
        return f"<braid.Network {self.name}({inputs}), batch sizes {sizes}>"

    def _repr_html_(self) -> str:
        return "".join(schedule._repr_html_() for schedule in self.schedules.values())
