"""What a model is compiled for: batch sizes, planner, precision, as the user asked for them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from braid.core.errors import InvalidRequest
from braid.core.json_form import from_json, to_json
from braid.core.padding import REPEAT, ZEROS
from braid.core.precision import FP32, check_precision
from braid.scheduler.options import PlannerSettings

MAX_BATCH_SIZE = 4096
MAX_BATCH_SIZES = 32
LARGER_SIZES = tuple(2**power for power in range(1, MAX_BATCH_SIZE.bit_length()))
"""Batch sizes that are tried where none were asked for."""

MAX_DIMS = 16

MAX_SHAPES = 16
"""Shapes that one model is scheduled for: each has plans, and memory, of its own."""

NO_LENGTHS = "none"
"""Lengths that follow from the requests, where padding is exact; and no lengths of their own."""

Shapes = Mapping[str, tuple[int, ...]]
"""Whole shapes by input, batch as 1."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options to schedule a model for. Equal options for equal bytes are the same registration."""

    # Ascending; none: 1, and larger ones that pay. Ignored for models without a batch.
    batch_sizes: tuple[int, ...] = ()
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    # Input -> whole shape, batch as 1, for inputs with open extents.
    input_shapes: Shapes = field(default_factory=dict)
    precision: str = FP32  # of braid.core.precision.ASKED
    # Outputs may be so far from the FP32 reference, relative to the largest element of each.
    # None: as far as is usual for the precision.
    accepted_error: float | None = None
    samples: str = ""  # digest of the inputs that errors are measured on; empty: seeded ones
    pad: Mapping[str, str] = field(default_factory=dict)  # axis -> way, where nothing shows it
    no_pad: bool = False  # requests are never padded
    more_shapes: tuple[Shapes, ...] = ()  # scheduled beside ``input_shapes``, in the same form
    lengths: str = NO_LENGTHS  # of the padded axis, scheduled, too: those, or "16,32,64"
    batchable: bool = False  # rows of requests share batches though the graph does not show it safe

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.accepted_error is not None and not 0 < self.accepted_error <= 1:
            raise InvalidRequest(
                "the accepted error is relative to the largest element of an output: above 0, "
                f"at most 1, not {self.accepted_error}"
            )
        if self.no_pad and self.pad:
            raise InvalidRequest("padding is either asked for or forbidden, not both")
        for axis, way in self.pad.items():
            if way not in (ZEROS, REPEAT):
                raise InvalidRequest(f"pad[{axis!r}] is {way[:50]!r}; there are {ZEROS}, {REPEAT}")
        sizes = tuple(sorted(set(self.batch_sizes)))
        if sizes and (sizes[0] < 1 or sizes[-1] > MAX_BATCH_SIZE):
            raise InvalidRequest(f"batch sizes lie between 1 and {MAX_BATCH_SIZE}")
        if len(sizes) > MAX_BATCH_SIZES:
            raise InvalidRequest(f"at most {MAX_BATCH_SIZES} batch sizes, not {len(sizes)}")
        self._check_shapes()
        object.__setattr__(self, "batch_sizes", sizes)
        object.__setattr__(self, "input_shapes", _as_tuples(self.input_shapes))
        object.__setattr__(self, "more_shapes", tuple(map(_as_tuples, self.more_shapes)))
        object.__setattr__(self, "lengths", _canonical(self.lengths))
        if self.samples and (self.more_shapes or self.given_lengths):
            raise InvalidRequest(
                "samples are of one shape, and are not compared at others: leave out the samples, "
                "or register one input shape and no lengths"
            )

    def _check_shapes(self) -> None:
        shapes = (self.input_shapes, *self.more_shapes)
        for name, shape in [item for one in shapes for item in one.items()]:
            if len(shape) > MAX_DIMS or any(not 0 <= dim < 2**31 for dim in shape):
                raise InvalidRequest(f"input_shapes[{name!r}] is not a shape: {list(shape)[:20]}")
        if any(one.keys() != self.input_shapes.keys() for one in self.more_shapes):
            raise InvalidRequest("each of several input shapes names the same inputs as the first")
        if len(shapes) > MAX_SHAPES:
            raise InvalidRequest(
                f"at most {MAX_SHAPES} shapes are scheduled, not {len(shapes)}; leave some out: "
                "requests in other shapes are answered all the same"
            )
        distinct = {tuple((name, *one[name]) for name in sorted(one)) for one in shapes}
        if len(distinct) < len(shapes):
            raise InvalidRequest("two of the input shapes are equal; give each of them once")

    @property
    def given_lengths(self) -> tuple[int, ...]:
        """Lengths of the padded axis that were asked for, ascending."""
        if self.lengths == NO_LENGTHS:
            return ()
        return tuple(map(int, self.lengths.split(",")))

    def to_json(self) -> dict[str, Any]:
        document, usual = to_json(self), to_json(ModelOptions())
        said = {name: value for name, value in document.items() if value != usual[name]}
        always = {name: document[name] for name in ("batch_sizes", "input_shapes")}
        return {**said, **always, "planner": self.planner.text}


def several_shapes(given: Iterable[tuple[str, tuple[int, ...]]]) -> list[Shapes]:
    """Return the shapes that repeated inputs mean: the nth of each input belong together.

    An input that is given once has that shape in all of them. Raises InvalidRequest: inputs are
    given for different numbers of shapes.
    """
    by_name: dict[str, list[tuple[int, ...]]] = {}
    for name, shape in given:
        by_name.setdefault(name, []).append(shape)
    count = max(map(len, by_name.values()), default=0)
    for name, shapes in by_name.items():
        if len(shapes) not in (1, count):
            raise InvalidRequest(
                f"there are {count} input shapes, but {len(shapes)} of {name!r}; give each input "
                "once, or once for each shape"
            )
    return [
        {name: shapes[min(number, len(shapes) - 1)] for name, shapes in by_name.items()}
        for number in range(count)
    ]


def options_from_json(document: Mapping[str, Any]) -> ModelOptions:
    planner = PlannerSettings.parse(document["planner"])
    return from_json(ModelOptions, {**document, "planner": to_json(planner)})


def _as_tuples(shapes: Mapping[str, Sequence[int]]) -> Shapes:
    return {name: tuple(shape) for name, shape in shapes.items()}


def _canonical(lengths: str) -> str:
    """Return lengths as they are stored. InvalidRequest: no lengths, equal, or too many."""
    text = lengths.strip() or NO_LENGTHS
    if text == NO_LENGTHS:
        return text
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(
            f"lengths are {NO_LENGTHS} or integers between commas, not {text[:50]!r}"
        ) from None
    if len(numbers) > MAX_SHAPES:
        raise InvalidRequest(f"at most {MAX_SHAPES} lengths are scheduled, not {len(numbers)}")
    if min(numbers) < 1 or max(numbers) >= 2**31:
        raise InvalidRequest(f"lengths start at 1: {text[:50]!r}")
    if len({*numbers}) < len(numbers):
        raise InvalidRequest(f"two of the lengths are equal: {text[:50]!r}; give each of them once")
    return ",".join(map(str, sorted(numbers)))
