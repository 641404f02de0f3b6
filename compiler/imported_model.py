"""An artefact with what it is compiled for: programs to measure, keys of schedules.

artefact folder ──read_imported──> ImportedModel ──> compile (program, key of a schedule),
                                                     devices (load), models that serve
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from braid.compiler.options import MAX_BATCH_SIZE, ModelOptions
from braid.core.errors import DamagedArtefact, InvalidArtefact, InvalidRequest
from braid.core.graph import OpGraph
from braid.core.padding import PaddedAxis, as_asked
from braid.core.precision import AUTO, FP32
from braid.core.program import ProgramKey, StaticContent, static_content
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import ScheduleKey
from braid.core.tensor import BATCH, BYTES, TensorType
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

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes to schedule for, in rows; 1 for a model that takes one row only."""
        return (self._takes_rows and self.options.batch_sizes) or (1,)

    @property
    def larger_sizes(self) -> tuple[int, ...]:
        """Batch sizes that serve beside those, if they turn out to pay."""
        if self.options.batch_sizes or not self._takes_rows or self.has_strings:
            return ()
        return tuple(2**power for power in range(1, MAX_BATCH_SIZE.bit_length()))

    @property
    def _takes_rows(self) -> bool:
        batch = self.report.batch
        return batch is not None and not batch.alone

    @property
    def is_onnxruntime_right(self) -> bool:
        """Whether the import compared with ONNX Runtime, on the file itself and in its types."""
        report = self.report
        is_reference = report.verified.reference.startswith(f"{ONNXRUNTIME} ")
        return is_reference and not report.narrow_type and report.source != CONVERTED

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
        given = self.options.input_shapes
        given_dims = {dim for name in given for dim in self.graph.inputs[name].shape}
        return {
            dim: int(extent)
            for name, spec in self.inputs(1).items()
            for dim, extent in zip(self.graph.inputs[name].shape, spec.shape, strict=True)
            if isinstance(dim, str) and dim != BATCH and dim not in given_dims
        }

    @property
    def padding(self) -> tuple[PaddedAxis, ...]:
        """Whether requests may be padded, for each open axis.

        Raises:
            InvalidRequest: the registration asks for padding that is not exact.
        """
        options, report = self.options, self.report
        tolerance = report.verified.tolerance
        return as_asked(report.padding, options.pad, tolerance, is_forbidden=options.no_pad)

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

        Extents are those asked for at registration, else of the import's example shapes.

        Raises:
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

    def program(self, batch_size: int, precision: str = "") -> ProgramKey:
        """Program that a batch size is measured as, on its usual kernels.

        An empty ``precision`` means the registration's, or FP32 if that is ``auto``.
        """
        inputs = tuple(self.inputs(batch_size).items())
        wanted = self.options.precision
        precision = precision or (FP32 if wanted == AUTO else wanted)
        return ProgramKey(self.digest, inputs, self.static, precision)

    def schedule_key(self, device_key: str, batch_size: int) -> ScheduleKey:
        """Key of the schedule for a batch size on a device.

        Raises:
            InvalidRequest: two inputs give one symbol different extents.
        """
        extents: dict[str, int] = {}
        inputs = self.inputs(batch_size)
        for name, template in self.graph.inputs.items():
            for symbol, extent in zip(template.shape, inputs[name].shape, strict=True):
                if isinstance(symbol, str) and symbol != BATCH:
                    assert isinstance(extent, int)
                    if extents.setdefault(symbol, extent) != extent:
                        raise InvalidRequest(
                            f"input_shapes gives {symbol!r} as {extents[symbol]} and as {extent}"
                        )
        options = self.options
        return ScheduleKey(
            model_digest=self.report.sha256,
            device_key=device_key,
            batch_size=batch_size,
            precision=options.precision,
            planner=options.planner.text,
            shapes=",".join(f"{symbol}={extents[symbol]}" for symbol in sorted(extents)),
            accepted_error=options.accepted_error,
            samples=options.samples,
        )

    def check_samples(self, samples: Arrays) -> int:
        """Check that samples fit the inputs; returns how many there are.

        Raises:
            InvalidRequest: an array is missing, unknown, or of another type or shape.
        """
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

    Raises:
        DamagedArtefact: a file is missing, was changed, or is of another upload.
        SystemShortage: it cannot be read for now.
    """
    try:
        report = read_report_of(artefact, digest)
        if MODEL_FILE in report.files:
            check_file(artefact, report, MODEL_FILE)
        return ImportedModel(digest, options, artefact, read_graph(artefact, report), report)
    except InvalidArtefact as error:
        raise DamagedArtefact(str(error)) from error
