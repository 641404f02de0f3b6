"""Proof by numbers: the lowered model against the reference, and batches against single runs.

    at batch 1   our outputs = the reference's outputs                   or the import fails
    at 3 and 5   our rows    = our outputs for each row alone            or it serves unbatched
                 our outputs = the reference's, where that takes a batch

An error is the largest absolute difference over the largest absolute value of that output. The
tolerance is 1e-4 (for half precision weights more), unless rounding alone moves the outputs
further. That is measured where the tolerance is missed: the distance between our outputs in
single and double precision, and between the reference with and without its optimisations.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from braid.core.errors import BraidError, InvalidRequest, ModelImportError
from braid.core.graph import Operator, OpGraph
from braid.core.precision import allowed_in
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.verification.example_inputs import ContentRefused, Example, check_memory
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.ops.whole import KIND
from braid.engine.passes.body import Weights, map_operators
from braid.engine.passes.specialise import interpret, specialise
from braid.engine.runtime.memory import raise_out_of_memory

TOLERANCE = 1e-4
_INTEGER_MISMATCHES = 0.01  # most elements of an integer output (argmax) that may differ
_TINY = 1e-6  # outputs smaller than this are compared absolutely

Outputs = Mapping[str, Tensor]


class Disagreement(BraidError):
    """Disagreement of two runs that should agree; the message names the output and the error."""


def compare(expected: Outputs, got: Outputs, tolerance: float) -> float:
    """Largest relative error; ``Disagreement`` names the first output over the tolerance."""
    largest = 0.0
    for name, wanted in expected.items():
        actual = got[name]
        if actual.dtype != wanted.dtype or actual.shape != wanted.shape:
            raise Disagreement(
                f"output {name!r} is {actual.dtype} {list(actual.shape)}, "
                f"expected {wanted.dtype} {list(wanted.shape)}"
            )
        error = relative_error(wanted, actual)
        limit = tolerance if wanted.is_floating_point() else _INTEGER_MISMATCHES
        if not error <= limit:
            raise Disagreement(
                f"output {name!r} has a relative error of {error:.3g}, over {limit:g}"
            )
        largest = max(largest, error)
    return largest


def relative_error(expected: Tensor, got: Tensor) -> float:
    """Largest absolute difference over the largest absolute value; infinities must be equal.

    Of integers and booleans: the share of elements that differ.
    """
    if expected.numel() == 0:
        return 0.0
    if not expected.is_floating_point():
        return float((expected != got).double().mean())
    wide, actual = expected.double(), got.double()
    finite = torch.isfinite(wide)
    both_nan = torch.isnan(wide) & torch.isnan(actual)
    same = torch.where(finite, torch.isfinite(actual), (wide == actual) | both_nan)
    if not bool(same.all()):
        return float("inf")
    wide, actual = wide[finite], actual[finite]
    if wide.numel() == 0:
        return 0.0
    return float((wide - actual).abs().max() / wide.abs().max().clamp_min(_TINY))


def furthest(expected: Outputs, got: Outputs) -> float:
    """Largest relative error over all outputs, without a limit."""
    return max(relative_error(expected[name], got[name]) for name in expected)


def in_double(template: OpGraph) -> OpGraph:
    def change(op: Operator) -> Operator:
        if "FP32" not in op.attributes.values():
            return op
        wide = {key: "FP64" if v == "FP32" else v for key, v in op.attributes.items()}
        return dataclasses.replace(op, attributes=wide)

    inputs = {name: double_spec(spec) for name, spec in template.inputs.items()}
    return dataclasses.replace(map_operators(template, change), inputs=inputs)


def double_spec(spec: TensorType) -> TensorType:
    return TensorType("FP64" if spec.dtype == "FP32" else spec.dtype, spec.shape)


def widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


_HALF_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}  # where weights are that coarse
_MOST_HALF_TOLERANCE = 0.5  # what rounding to 16 bits moves, the file's author has accepted
CHECKED_BATCHES = (3, 5)
_ROUNDING_MARGIN = 16.0  # the two roundings measured are not the worst
_MOST_TOLERANCE = 1e-2
_MOST_SEEDS = 6

OTHER_SCALES = (2, 3)  # other extents to look at a model at, as multiples of the example's


@dataclass(frozen=True, slots=True)
class Checked:
    """Errors and tolerances of the checks that passed."""

    error: float  # the largest seen
    tolerance: float  # the largest needed
    evidence: float  # the smallest needed: one check that rounding did not decide is worth most
    informative: bool = True  # the outputs followed the inputs


@dataclass(frozen=True, slots=True)
class Subject:
    """Template under test, with its weights and example inputs."""

    template: OpGraph
    weights: Weights
    example: Example
    memory_bytes: int  # most that intermediate tensors may take
    is_first_try: bool = False  # another one with more memory would follow
    narrow_type: str = ""  # FP16 or BF16, if the file computes in it
    batchable: bool = False  # rows are stated not to influence each other

    def specialised(self, rows: int | None) -> tuple[OpGraph, dict[str, Tensor]]:
        """``rows`` replaces dimension 0; ``InvalidRequest`` if it does not run at these shapes."""
        specs = {
            name: spec if rows is None else TensorType(spec.dtype, (rows, *spec.shape[1:]))
            for name, spec in self.example.specs.items()
        }
        graph, constants = specialise(
            self.template, self.weights, specs, self.example.static_values
        )
        check_memory(graph, self.memory_bytes)
        return graph, constants

    @property
    def extents(self) -> dict[str, int]:
        """Extents of the example for each symbol of the inputs but the batch."""
        extents = self.example.extents(self.template.inputs)
        return {symbol: extent for symbol, extent in extents.items() if symbol != BATCH}

    def inputs_at(self, extents: Mapping[str, int]) -> dict[str, TensorType]:
        """Specs of the inputs of one row at these extents."""
        inputs = self.template.inputs
        return {name: spec.bind({BATCH: 1, **extents}) for name, spec in inputs.items()}

    @property
    def weights_tolerance(self) -> float:
        types = {tensor.dtype for tensor in self.weights.values()}
        if self.rounded_to is not None:
            types.add(self.rounded_to)
        return max((_HALF_TOLERANCE.get(dtype, TOLERANCE) for dtype in types), default=TOLERANCE)

    @property
    def tolerance(self) -> float:
        return allowed_in(self.weights_tolerance, self.template)

    @property
    def most_tolerance(self) -> float:
        """The largest relative error that rounding may explain."""
        return max(_MOST_HALF_TOLERANCE if self.narrow_type else _MOST_TOLERANCE, self.tolerance)

    @property
    def rounded_to(self) -> torch.dtype | None:
        """The file's type, if the template computes in a wider one."""
        return torch_dtype(self.narrow_type) if self.narrow_type else None


@trial()
def run(
    graph: OpGraph,
    constants: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    rounded_to: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Raises ``InvalidRequest`` if an operator refuses the content of its operands."""
    try:
        return interpret(graph, constants, inputs, rounded_to=rounded_to)
    except BraidError:
        raise
    except Exception as error:  # torch raises whatever it likes
        raise_out_of_memory(error)
        first = str(error).partition("\n")[0]
        raise InvalidRequest(f"running the model failed: {first}") from error


def verify_single(subject: Subject, reference: ReferenceModel) -> tuple[Subject, Checked]:
    """Compare at the example's shapes, on the first range of integers that passes.

    Masks drawn as large numbers, or a vocabulary of two, can make rounding decisive: then the
    other ranges that the model takes are tried, and the one where rounding matters least counts.
    ``ModelImportError`` names the first output that differs and its error.
    """
    attempts = []
    for ranges in subject.example.integers:
        example = dataclasses.replace(subject.example, integers=(ranges,))
        narrowed = dataclasses.replace(subject, example=example)
        attempts.append((narrowed, verify_content(narrowed, reference)))
        if attempts[-1][1].tolerance <= subject.tolerance:
            break
    chosen, checked = min(attempts, key=lambda pair: pair[1].tolerance)
    if checked.evidence > subject.most_tolerance:
        raise ModelImportError(
            "the import cannot be verified: rounding alone moves the outputs of this model by "
            f"{checked.evidence / _ROUNDING_MARGIN:.1g} of the largest (not enough precision?)"
        )
    return chosen, checked


def verify_content(subject: Subject, reference: ReferenceModel) -> Checked:
    """Compare for two seeds; for more, as long as rounding decides.

    Raises ``ContentRefused``, or ``ModelImportError`` with the output that differs and its error.
    """
    errors, tolerances, results = [], [], []
    static = subject.specialised(None)
    for seed in range(_MOST_SEEDS):
        inputs = subject.example.draw(None, seed)
        try:
            results.append(run(*static, inputs))
            error, tolerance = _agree(subject, reference, inputs, None, results[-1])
        except ReferenceFailed as failure:
            raise ContentRefused(f"{reference.name} fails on this model: {failure}") from failure
        except (InvalidRequest, Disagreement) as failure:
            kind = ModelImportError
            if isinstance(failure, InvalidRequest) and _is_invalid(subject, reference, inputs):
                kind = ContentRefused
            raise kind(
                f"the imported model does not agree with {reference.name}: {failure}"
            ) from failure
        errors.append(error)
        tolerances.append(tolerance)
        if len(results) > 1 and min(tolerances) <= subject.tolerance:
            break
    informative = _differ(*results) or subject.example.are_alike  # one sample shows neither
    return Checked(max(errors), max(tolerances), min(tolerances), informative)


def _is_invalid(subject: Subject, reference: ReferenceModel, inputs: Mapping[str, Tensor]) -> bool:
    """Whether the model refuses inputs, too; a template also refuses other shapes of outputs."""
    if any(unit.kind == KIND for unit in subject.template.operators):
        return True
    try:
        reference.run(inputs)
    except ReferenceFailed:
        return True
    return False


def _agree(
    subject: Subject,
    reference: ReferenceModel,
    inputs: Mapping[str, Tensor],
    rows: int | None,
    got: Outputs,
) -> tuple[float, float]:
    """(error, tolerance needed); raises ``Disagreement`` or ``ReferenceFailed``."""
    expected = reference.run(inputs)

    def rounding() -> float:
        ours = _own_rounding(subject, inputs, rows, got)
        try:
            return max(ours, furthest(expected, reference.reordered(inputs)))
        except ReferenceFailed:
            return ours

    return _explained(expected, got, subject.tolerance, rounding)


def _explained(
    expected: Outputs, got: Outputs, tolerance: float, rounding: Callable[[], float]
) -> tuple[float, float]:
    """(error, tolerance needed); ``Disagreement`` if rounding does not explain the error."""
    try:
        return compare(expected, got, tolerance), tolerance
    except Disagreement:
        needed = _ROUNDING_MARGIN * rounding()
        if needed <= tolerance:
            raise
        return compare(expected, got, needed), needed


def _own_rounding(
    subject: Subject, inputs: Mapping[str, Tensor], rows: int | None, got: Outputs
) -> float:
    """Distance between our outputs and the same in double precision, or in the file's type."""
    if subject.rounded_to is not None:
        rounded = furthest(run(*subject.specialised(rows), inputs, subject.rounded_to), got)
        return rounded if math.isfinite(rounded) else 0.0  # to overflow is not to round
    wide = _in_double(subject)
    doubles = {name: widened(tensor) for name, tensor in inputs.items()}
    try:
        return furthest(run(*wide.specialised(rows), doubles), got)
    except InvalidRequest:
        return 0.0  # an operator without double precision


def _in_double(subject: Subject) -> Subject:
    return Subject(
        in_double(subject.template),
        {name: widened(tensor) for name, tensor in subject.weights.items()},
        dataclasses.replace(
            subject.example,
            specs={name: double_spec(spec) for name, spec in subject.example.specs.items()},
        ),
        2 * subject.memory_bytes,
    )


def verify_batches(subject: Subject, reference: ReferenceModel) -> tuple[BatchAxes, Checked]:
    """Compare rows in a batch with the same rows alone, and find the batch axis of each output.

    ``subject`` has the batch as dimension 0 of every input. Raises ``InvalidRequest`` or
    ``Disagreement`` where rows in a batch are not what they are alone.
    """
    most = max(CHECKED_BATCHES)
    rows = subject.example.draw(most, seed=2)
    single_row = subject.specialised(1)
    singles = [run(*single_row, _rows(rows, i, i + 1)) for i in range(most)]
    together = {
        batch: run(*subject.specialised(batch), _rows(rows, 0, batch)) for batch in CHECKED_BATCHES
    }
    axes = {
        name: _batch_axis(name, [singles[0][name], *(out[name] for out in together.values())])
        for name in subject.template.outputs
    }
    agreements = []
    for batch, got in {1: singles[0], **together}.items():
        inputs = _rows(rows, 0, batch)
        stacked = _stacked(singles[:batch], axes)
        ours = functools.partial(_own_rounding, subject, inputs, batch, got)
        agreements.append(_explained(stacked, got, subject.tolerance, ours))
        try:
            agreements.append(_agree(subject, reference, inputs, batch, got))
        except ReferenceFailed as failure:
            if batch == 1:
                raise Disagreement(f"{reference.name} fails: {failure}") from failure
    errors, tolerances = zip(*agreements, strict=True)
    checked = Checked(max(errors), max(tolerances), min(tolerances), _differ(*singles))
    return BatchAxes(dict.fromkeys(subject.template.inputs, 0), axes), checked


def _rows(inputs: Mapping[str, Tensor], start: int, end: int) -> dict[str, Tensor]:
    return {name: tensor[start:end].contiguous() for name, tensor in inputs.items()}


def _batch_axis(name: str, outputs: Sequence[Tensor]) -> int | None:
    """Axis that is the batch at 1, 3 and 5; None: shape is fixed; ``Disagreement`` otherwise."""
    shapes = [tuple(output.shape) for output in outputs]
    if len(set(shapes)) == 1:
        return None
    wanted = (1, *CHECKED_BATCHES)
    for axis in range(len(shapes[0])):
        if all(
            shape == (*shapes[0][:axis], batch, *shapes[0][axis + 1 :])
            for shape, batch in zip(shapes, wanted, strict=True)
        ):
            return axis
    places = ", ".join(f"{list(shape)} at {b}" for shape, b in zip(shapes, wanted, strict=True))
    raise Disagreement(f"output {name!r} does not have one row for each row of the batch: {places}")


def _stacked(singles: Sequence[Outputs], axes: Mapping[str, int | None]) -> dict[str, Tensor]:
    return {
        name: singles[0][name] if axis is None else torch.cat([s[name] for s in singles], axis)
        for name, axis in axes.items()
    }


def _differ(first: Outputs, *others: Outputs) -> bool:
    return any(not torch.equal(first[name], other[name]) for other in others for name in first)
