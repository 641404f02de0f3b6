"""An artefact with what it is compiled for: programs to measure, keys of schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from braid.compiler.options import LARGER_SIZES, MAX_SHAPES, NO_LENGTHS, ModelOptions, Shapes
from braid.core.errors import DamagedArtefact, InvalidArtefact, InvalidRequest
from braid.core.graph import OpGraph
from braid.core.inputs import ShapeClass
from braid.core.padding import PaddedAxis, as_asked
from braid.core.precision import AUTO, FP32
from braid.core.program import ProgramKey, StaticContent, static_content
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import ScheduleKey
from braid.core.tensor import BATCH, BYTES, TensorType, outputs_at
from braid.engine.importer.host.report import (
    CONVERTED,
    MODEL_FILE,
    Report,
    check_file,
    read_graph,
    read_report_of,
)
from braid.engine.importer.host.samples import Arrays, check_fit


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """What an import left in an artefact folder, and what it is compiled for."""

    digest: str  # key of the artefact, usually SHA-256 of the uploaded file, hex
    options: ModelOptions
    artefact: Path
    graph: OpGraph  # the template: the batch and open extents are symbols
    report: Report
    padding_failure: str = ""  # how a padded request was answered wrongly: none is padded again

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes to schedule for, in rows; 1 for a model that takes one row only."""
        return (self.takes_rows and self.options.batch_sizes) or (1,)

    @property
    def larger_sizes(self) -> tuple[int, ...]:
        """Batch sizes that serve beside those, if they turn out to pay."""
        if self.options.batch_sizes or not self.takes_rows or self.has_strings:
            return ()
        return LARGER_SIZES

    @property
    def takes_rows(self) -> bool:
        batch = self.report.batch
        return batch is not None and not batch.alone

    @property
    def is_onnxruntime_right(self) -> bool:
        """Whether the import compared with ONNX Runtime, on the file itself and in its types."""
        report = self.report
        is_reference = report.verified.reference.startswith(f"{ONNXRUNTIME} ")
        return is_reference and not report.narrow_type and report.source not in CONVERTED

    @property
    def static(self) -> StaticContent:
        """Content of the static inputs that the model was checked with."""
        return static_content(self.report.static_values, self.graph.inputs)

    @property
    def has_strings(self) -> bool:
        graph = self.graph
        outputs = (graph.spec(value) for value in graph.outputs.values())
        return any(spec.dtype == BYTES for spec in (*graph.inputs.values(), *outputs))

    @property
    def guessed(self) -> dict[str, int]:
        """Extents that schedules are made for, by name, and that the registration left open."""
        given_dims = self._given_dims
        return {
            dim: int(extent)
            for name, spec in self.inputs(1).items()
            for dim, extent in zip(self.graph.inputs[name].shape, spec.shape, strict=True)
            if isinstance(dim, str) and dim != BATCH and dim not in given_dims
        }

    @property
    def _given_dims(self) -> set[int | str]:
        """Extents of the inputs whose shape the registration gives."""
        inputs = self.graph.inputs
        return {dim for name in self.options.input_shapes for dim in inputs[name].shape}

    @property
    def padding(self) -> tuple[PaddedAxis, ...]:
        """Padding of requests by open axis. InvalidRequest: what is asked for is not exact."""
        options, report = self.options, self.report
        tolerance = report.verified.tolerance
        return as_asked(report.padding, options.pad, tolerance, is_forbidden=options.no_pad)

    @property
    def padded_axis(self) -> PaddedAxis | None:
        """Axis along which calls may be padded, to share batches or plans; None: there is none."""
        graph = self.graph
        specs = {name: graph.spec(value) for name, value in graph.outputs.items()}
        outputs = outputs_at(graph.inputs, specs, self.inputs(1)).values()
        is_open = any(not spec.bind({BATCH: 1}).is_static for spec in outputs)
        if is_open or not self.takes_rows or self.has_strings or self.report.static_inputs:
            return None
        return next((axis for axis in self.padding if axis.exact), None)

    def at_shapes(self) -> tuple[ImportedModel, ...]:
        """Return the model at each shape that it is scheduled for, the main one first.

        Raises InvalidRequest: there is no axis for the lengths asked for, one is out of its range,
        two shapes are equal, or there are too many.
        """
        options = self.options
        if not (options.more_shapes or options.given_lengths):
            return (self,)
        shapes = [self._at(shapes) for shapes in (options.input_shapes, *options.more_shapes)]
        if len({one.shapes_text for one in shapes}) < len(shapes):
            raise InvalidRequest("two of the input shapes are equal; give each of them once")
        if options.given_lengths:
            axis = self._axis_of_lengths()
            at_lengths = [self._at(self._with_length(axis, one)) for one in options.given_lengths]
            shapes = [*(shapes if axis.axis in self._given_dims else ()), *at_lengths]
        by_text: dict[str, ImportedModel] = {}
        for one in shapes:
            by_text.setdefault(one.shapes_text, one)
        if len(by_text) > MAX_SHAPES:
            raise InvalidRequest(
                f"input shapes and lengths are {len(by_text)} shapes; at most {MAX_SHAPES} are "
                "scheduled: leave some out, requests in other shapes are answered all the same"
            )
        return tuple(by_text.values())

    def at(self, shapes_text: str) -> ImportedModel:
        """Return the model at one of its shapes, else at the main one."""
        shapes = self.at_shapes()
        return next((one for one in shapes if one.shapes_text == shapes_text), shapes[0])

    def _axis_of_lengths(self) -> PaddedAxis:
        """The only padded axis. InvalidRequest: there is not one, or a length is out of range."""
        exact = [axis for axis in self.padding if axis.exact]
        if len(exact) != 1:
            why = "; ".join(axis.text() for axis in self.padding) or "the import looked at no axis"
            raise InvalidRequest(
                f"lengths are of the one axis along which requests are padded; this model has "
                f"{len(exact)} ({why}); give whole shapes (--input-shape, several times)"
            )
        (axis,), longest = exact, self.options.given_lengths[-1]
        if longest > axis.up_to:
            raise InvalidRequest(
                f"length {longest} is out of range: padding along {axis.axis!r} was looked at up "
                f"to {axis.up_to}; leave it out, or give it as a shape (--input-shape)"
            )
        return axis

    def _with_length(self, axis: PaddedAxis, length: int) -> Shapes:
        shapes = dict(self.options.input_shapes)
        for name, spec in self.inputs(1).items():
            if name in axis.inputs:
                at = axis.inputs[name].dimension
                shapes[name] = (*map(int, spec.shape[:at]), length, *map(int, spec.shape[at + 1 :]))
        return shapes

    def _at(self, shapes: Shapes) -> ImportedModel:
        options = self.options
        one = replace(options, input_shapes=shapes, more_shapes=(), lengths=NO_LENGTHS)
        return replace(self, options=one)

    @property
    def is_planned(self) -> bool:
        """Whether there is something to plan.

        ONNX Runtime runs models of strings, those whose outputs' lengths follow the content, and
        those of which no content is known that they take.
        """
        follow = (unit.attributes.get("follows_content") for unit in self.graph.operators)
        return not (self.has_strings or any(follow) or not self.report.verified.batches)

    def inputs(self, batch_size: int) -> dict[str, TensorType]:
        """Static specs of the inputs at ``batch_size`` rows; a fixed batch stays as it is.

        Extents are those asked for at registration, else of the import's example shapes. Raises
        InvalidRequest: a shape given at registration is of another input, rank or extent.
        """
        inputs, wanted = self.graph.inputs, self.options.input_shapes
        if unknown := sorted(set(wanted) - set(inputs)):
            raise InvalidRequest(
                f"input_shapes names {', '.join(unknown)}; the model's inputs: {', '.join(inputs)}"
            )
        shapes = {**self.report.example_shapes, **wanted}
        return {
            name: _static_spec(name, spec, shapes[name], batch_size)
            for name, spec in inputs.items()
        }

    @property
    def shape_class(self) -> ShapeClass:
        """Class of calls in the shapes that it is compiled for."""
        specs, batched = self.inputs(1).items(), self.report.batch is not None
        inputs = tuple((name, spec.at_rows(1) if batched else spec) for name, spec in specs)
        return ShapeClass(inputs, self.static)

    def program(self, batch_size: int, precision: str = "") -> ProgramKey:
        """Program that a batch size is measured as, on its usual kernels.

        An empty ``precision`` means the registration's, or FP32 if that is ``auto``.
        """
        inputs = tuple(self.inputs(batch_size).items())
        wanted = self.options.precision
        precision = precision or (FP32 if wanted == AUTO else wanted)
        return ProgramKey(self.digest, inputs, self.static, precision)

    @property
    def shapes_text(self) -> str:
        """Extents but the batch, as in keys: "h=48,w=320". InvalidRequest: inputs disagree."""
        extents: dict[str, int] = {}
        inputs = self.inputs(1)
        for name, template in self.graph.inputs.items():
            for symbol, extent in zip(template.shape, inputs[name].shape, strict=True):
                if isinstance(symbol, str) and symbol != BATCH:
                    assert isinstance(extent, int)
                    if extents.setdefault(symbol, extent) != extent:
                        raise InvalidRequest(
                            f"input_shapes gives {symbol!r} as {extents[symbol]} and as {extent}"
                        )
        return ",".join(f"{symbol}={extents[symbol]}" for symbol in sorted(extents))

    def schedule_key(self, device_key: str, batch_size: int) -> ScheduleKey:
        """Raises InvalidRequest: two inputs give one symbol different extents."""
        options = self.options
        return ScheduleKey(
            model_digest=self.report.sha256,
            device_key=device_key,
            batch_size=batch_size,
            precision=options.precision,
            planner=options.planner.text,
            shapes=self.shapes_text,
            accepted_error=options.accepted_error,
            samples=options.samples,
        )

    def check_samples(self, samples: Arrays) -> int:
        """Check samples against the inputs, or raise InvalidRequest; returns how many there are."""
        set_already = dict(self.static)
        inputs = {name: spec for name, spec in self.inputs(1).items() if name not in set_already}
        return check_fit(samples, inputs, self.graph.inputs)


def _static_spec(
    name: str, spec: TensorType, shape: tuple[int, ...], batch_size: int
) -> TensorType:
    """Spec of one input at ``shape``, which has the batch as 1."""
    if not spec.takes(shape):
        raise InvalidRequest(f"input_shapes[{name!r}] is {list(shape)}, the model takes {spec}")
    dims = zip(spec.shape, shape, strict=True)
    extents = (batch_size if dim == BATCH else extent for dim, extent in dims)
    return TensorType(spec.dtype, tuple(extents))


def read_imported(digest: str, options: ModelOptions, artefact: Path) -> ImportedModel:
    """Read an artefact folder, and check what no worker looks at. Blocks for some milliseconds.

    Raises DamagedArtefact, or SystemShortage: it cannot be read for now.
    """
    try:
        report = read_report_of(artefact, digest)
        if MODEL_FILE in report.files:
            check_file(artefact, report, MODEL_FILE)
        return ImportedModel(digest, options, artefact, read_graph(artefact, report), report)
    except InvalidArtefact as error:
        raise DamagedArtefact(str(error)) from error
