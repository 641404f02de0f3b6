"""One upload, from bytes to artefact; runs inside the confined process.

source ─> lower ─> passes ─> example ─> verify at batch 1
                                              └─> guess the batch ─> verify at 1, 3, 5
                                                              errors of padding ─> write
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from braid.core.errors import (
    ImportLimitExceeded,
    InvalidRequest,
    ModelImportError,
    UnsupportedOperators,
)
from braid.core.graph import OpGraph
from braid.core.runtimes import SERVED_WHOLE
from braid.engine.importer.artefact import write_artefact
from braid.engine.importer.host.messages import OnProgress
from braid.engine.importer.host.report import BatchAxes, Report, Verified, file_digest
from braid.engine.importer.host.request import ImportRequest
from braid.engine.importer.host.samples import Arrays, digest_of, read_samples
from braid.engine.importer.padding import padded_axes
from braid.engine.importer.rows.facts import RowsMeet
from braid.engine.importer.rows.whole import show_rows_apart
from braid.engine.importer.upload.batch_axis import (
    guess_batch,
    repair_reshapes,
    without_batch_symbol,
)
from braid.engine.importer.upload.uploaded_model import UploadedModel
from braid.engine.importer.verification.example_inputs import (
    ContentRefused,
    Example,
    TooMuchMemory,
    Trials,
    find_example,
    second_example,
)
from braid.engine.importer.verification.given_samples import sampled_example, with_shapes_of
from braid.engine.importer.verification.likely_shapes import shape_candidates
from braid.engine.importer.verification.probe import with_output_specs
from braid.engine.importer.verification.reference import THREADS, ReferenceModel
from braid.engine.importer.verification.verify import (
    CHECKED_BATCHES,
    TOLERANCE,
    Checked,
    Disagreement,
    Subject,
    verify_batches,
    verify_content,
    verify_single,
)
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.meta_kernels import leave_compiler_out
from braid.engine.ops.whole import KIND
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import static_inputs
from braid.engine.passes.widening import narrow_type, widen

_MOST_STATIC_ELEMENTS = 256
_MEMORY_FOR_TENSORS = 0.5  # of the limit: the rest is for libraries, weights and the reference


@dataclass(frozen=True, slots=True)
class Study:
    """Result of the verification: how the model is served, and the checks that passed."""

    subject: Subject
    batch: BatchAxes | None
    checked: Checked
    warnings: tuple[str, ...]
    rows: str = ""  # operator that may let rows influence each other
    is_verified: bool = True  # False: it ran on nothing that was tried, or never twice alike


def import_upload(source: UploadedModel, request: ImportRequest, on_progress: OnProgress) -> None:
    """Import one model; the artefact folder of ``request`` is incomplete if this raises.

    Raises:
        InvalidRequest: the samples cannot be read.
        ModelImportError: the model cannot be imported; says why.
        MemoryError, OSError: a limit of the process was met.
    """
    torch.set_num_threads(THREADS)
    leave_compiler_out()
    samples = read_samples(request.hints.samples) if request.hints.samples else {}
    study, reference = _in_parts_or_whole(source, request, samples, on_progress)
    if source.remark:
        study = replace(study, warnings=(*study.warnings, source.remark))
    on_progress(0.85, "measuring errors of padding")
    padding = padded_axes(study.subject, study.batch, reference) if study.is_verified else ()
    on_progress(0.9, "writing the artefact")
    report = _report(study, reference, request.upload, source)
    report = replace(report, samples=digest_of(samples) if samples else "", padding=padding)
    template = with_output_specs(study.subject, study.batch)
    write_artefact(request.artefact, template, study.subject.weights, report, source.file)


@dataclass(frozen=True, slots=True)
class _Model:
    """The template after the passes, its constants, and a remark for the report."""

    template: OpGraph
    weights: Mapping[str, Tensor]
    remark: str
    narrow_type: str = ""  # FP16 or BF16: the template computes in FP32 what the file does in it
    as_filed: tuple[OpGraph, Mapping[str, Tensor]] | None = None  # as lowered, if that is so


def _in_parts_or_whole(
    source: UploadedModel, request: ImportRequest, samples: Arrays, on_progress: OnProgress
) -> tuple[Study, ReferenceModel]:
    """Study a model in parts, or whole where parts do not do what the model does."""
    on_progress(0.1, "lowering the operators")
    try:
        model = _template(source, on_progress)
    except UnsupportedOperators as refusal:
        return _studied_whole(source, request, samples, refusal.reasons, on_progress)
    on_progress(0.4, "loading the model into the reference")
    reference = source.reference()
    try:
        return _checked(model, reference, request, samples, on_progress), reference
    except ImportLimitExceeded:
        raise
    except ModelImportError as error:
        refused = error
        del model
    try:
        return _studied_whole(source, request, samples, (str(refused),), on_progress)
    except (UnsupportedOperators, MemoryError):
        raise refused from None


def _checked(
    model: _Model,
    reference: ReferenceModel,
    request: ImportRequest,
    samples: Arrays,
    on_progress: OnProgress,
) -> Study:
    """Find content that the model takes, and compare with the reference.

    Samples are tried where made-up content is refused, never where it gives another result: so
    they cannot hide a wrong lowering.
    """
    on_progress(0.5, "looking for shapes that the model takes")
    plain = without_batch_symbol(model.template)
    memory_bytes = int(request.limits.memory_bytes * _MEMORY_FOR_TENSORS)
    trials = Trials(plain, model.weights, reference, memory_bytes)
    shapes = with_shapes_of(samples, plain.inputs, request.hints.shapes)

    def subject(example: Example) -> Subject:
        is_first, narrow = request.limits.is_first, model.narrow_type
        batchable = request.hints.batchable
        return Subject(plain, model.weights, example, memory_bytes, is_first, narrow, batchable)

    try:
        made_up = find_example(trials, shapes)
        return _compared(model, subject(made_up), reference, on_progress)
    except ContentRefused:
        if not samples:
            raise
    on_progress(0.5, "trying the samples")
    given = sampled_example(trials, shapes, samples)
    return _compared(model, subject(given), reference, on_progress)


def _compared(
    model: _Model, subject: Subject, reference: ReferenceModel, on_progress: OnProgress
) -> Study:
    remark = model.remark
    on_progress(0.6, f"checking against {reference.name}")
    try:
        study = _studied(subject, reference, on_progress)
    except ModelImportError as refusal:
        if model.as_filed is None or isinstance(refusal, ImportLimitExceeded):
            raise
        plain, weights = run_passes(*model.as_filed)
        subject = replace(subject, template=without_batch_symbol(plain), weights=weights)
        study = _studied(subject, reference, on_progress)
        remark = (
            f"computes in {model.narrow_type} after each operator, which is slow: in FP32, "
            f"{refusal}"
        )
    return replace(study, warnings=(*study.warnings, remark)) if remark else study


def _studied(subject: Subject, reference: ReferenceModel, on_progress: OnProgress) -> Study:
    study = study_batch(subject, reference)
    if not study.subject.example.samples:  # content of other shapes would be made up
        on_progress(0.8, "checking at other shapes")
        verify_elsewhere(study.subject, reference)
    return study


def _studied_whole(
    source: UploadedModel,
    request: ImportRequest,
    samples: Arrays,
    reasons: tuple[str, ...],
    on_progress: OnProgress,
) -> tuple[Study, ReferenceModel]:
    """Accepts a model that no run confirms; ``UnsupportedOperators`` if there is no safe way."""
    on_progress(0.3, "trying to serve the model as one unit")
    shapes = request.hints.shapes
    template, weights, untried = source.whole(reasons, shapes, samples)
    reference = source.reference()
    more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    remark = f"{SERVED_WHOLE}: {reasons[0][:200]}{more}"
    if not untried:
        model = _Model(template, weights, remark)
        try:
            return _checked(model, reference, request, samples, on_progress), reference
        except ImportLimitExceeded:
            raise
        except ModelImportError as error:
            untried = str(error)
    plain = without_batch_symbol(template)
    example = Example(next(shape_candidates(plain, shapes)), {})
    subject = Subject(plain, weights, example, request.limits.memory_bytes)
    checked = Checked(0.0, TOLERANCE, TOLERANCE)
    how = "" if samples else " (register it with samples of what it takes)"
    warnings = remark, f"not verified{how}: {untried}"[:1000]
    return Study(subject, None, checked, warnings, is_verified=False), reference


def _template(source: UploadedModel, on_progress: OnProgress) -> _Model:
    """Raises ``UnsupportedOperators`` if the model cannot be served in parts."""
    template, weights, remark = source.lowered()
    on_progress(0.3, "simplifying the graph")
    narrow, as_filed = narrow_type(template, weights), (template, weights)
    if narrow:
        template, weights = widen(template, weights)
    template, weights = run_passes(template, weights)
    _check_static_inputs(template)
    remarks = [remark] if remark else []
    if narrow:
        remarks.append(f"the file computes in {narrow}; it is served in FP32 inside")
    remark = "; ".join(remarks)
    return _Model(template, weights, remark, narrow, as_filed if narrow else None)


def _check_static_inputs(template: OpGraph) -> None:
    """Raise ``UnsupportedOperators`` if inputs other than a few integers decide shapes or branches.

    A plan is made for each content of such an input, so there may be few of them.
    """
    reasons = []
    for name in static_inputs(template):
        spec = template.inputs[name]
        few = spec.is_static and spec.elements <= _MOST_STATIC_ELEMENTS
        if torch_dtype(spec.dtype).is_floating_point or not few:
            reasons.append(f"shapes or branches depend on the content of input {name!r} ({spec})")
    if reasons:
        raise UnsupportedOperators(tuple(reasons))


def study_batch(subject: Subject, reference: ReferenceModel) -> Study:
    """Verify the model at batch 1 (``ModelImportError``), then find out if it takes any batch."""
    subject, checked = verify_single(subject, reference)
    unbatched = Study(subject, None, checked, _cautions(checked))
    guess = guess_batch(subject.template)
    if guess is None or static_inputs(subject.template) or _follows_content(subject.template):
        return unbatched
    static, _ = subject.specialised(None)
    values = {**static.inputs, **static.constants, **static.specs}
    batched = replace(subject, template=repair_reshapes(guess, values))
    try:
        if not subject.batchable:
            show_rows_apart(batched)
        axes, rows = verify_batches(batched, reference)
    except (InvalidRequest, Disagreement, RowsMeet) as error:
        if isinstance(error, TooMuchMemory) and subject.is_first_try:
            raise ImportLimitExceeded(str(error), "memory_bytes") from error
        if (single := _one_row(subject.template, static)) is not None:
            how = "one row at a time"
            study = Study(replace(subject, template=guess), single, checked, unbatched.warnings)
        else:
            how, study = "unbatched, at its own shape", unbatched
        warning = f"served {how}: {error}"
        if isinstance(error, RowsMeet):
            study = replace(study, rows=str(error))
            if error.operator:
                warning = f"{warning}; if no row depends on another, register it with --batchable"
        return replace(study, warnings=(*study.warnings, warning))
    both = replace(
        rows,
        error=max(checked.error, rows.error),
        tolerance=max(checked.tolerance, rows.tolerance),
    )
    return Study(batched, axes, both, _cautions(both))


def _follows_content(template: OpGraph) -> bool:
    """Whether an output has an extent that no shape decides: rows cannot be told apart in it."""
    return any(unit.attributes.get("follows_content") for unit in template.operators)


def _one_row(template: OpGraph, static: OpGraph) -> BatchAxes | None:
    """Axes of a model that the file says takes and gives exactly one row; None if it does not."""
    takes = all(spec.shape[0] == 1 for spec in template.inputs.values())
    gives = all(static.spec(value).shape[:1] == (1,) for value in static.outputs.values())
    if not (takes and gives):
        return None
    return BatchAxes(
        dict.fromkeys(template.inputs, 0), dict.fromkeys(template.outputs, 0), alone=True
    )


def verify_elsewhere(subject: Subject, reference: ReferenceModel) -> None:
    """Compare at other extents than the example's, where the model leaves some open."""
    trials = Trials(subject.template, subject.weights, reference, subject.memory_bytes)
    other = second_example(trials, subject.example)
    if other is not None:
        verify_content(replace(subject, example=other), reference)


def _cautions(checked: Checked) -> tuple[str, ...]:
    cautions = []
    if not checked.informative:
        cautions.append(
            "the outputs do not depend on the inputs (saturated or constant weights?), so "
            "agreement with the reference proves little"
        )
    if checked.tolerance > TOLERANCE:
        cautions.append(
            f"rounding moves the outputs of this model, so they were compared to within "
            f"{checked.tolerance:.1g} of the largest"
        )
    return tuple(cautions)


def _report(study: Study, reference: ReferenceModel, upload: Path, source: UploadedModel) -> Report:
    example: Example = study.subject.example
    template = study.subject.template
    batches: tuple[int, ...] = (
        (1, *CHECKED_BATCHES) if study.batch and not study.batch.alone else (1,)
    )
    if not study.is_verified:
        batches = ()
    is_whole = any(unit.kind == KIND for unit in template.operators)
    return Report(
        sha256=file_digest(upload),
        size_bytes=upload.stat().st_size,
        source=source.kind,
        opset=source.opset,
        batch=study.batch,
        static_inputs=static_inputs(template),
        example_shapes={
            name: tuple(int(dim) for dim in spec.shape) for name, spec in example.specs.items()
        },
        static_values={name: value.tolist() for name, value in example.static_values.items()},
        warnings=study.warnings,
        verified=Verified(reference.name, batches, study.checked.error, study.checked.tolerance),
        content=example.content_to_keep(reference, is_whole=is_whole) if study.is_verified else {},
        narrow_type=study.subject.narrow_type,
        batchable=study.subject.batchable,
        rows=study.rows,
        metadata=source.metadata,
    )
