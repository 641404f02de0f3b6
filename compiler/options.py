"""What a model is compiled for: batch sizes, planner, precision, as the user asked for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braid.core.errors import InvalidRequest
from braid.core.padding import REPEAT, ZEROS
from braid.core.precision import FP32, check_precision
from braid.scheduler.options import PlannerSettings

MAX_BATCH_SIZE = 4096
MAX_BATCH_SIZES = 32
MAX_DIMS = 16


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options to schedule a model for. Equal options for equal bytes are the same registration."""

    # Ascending; none: 1, and larger ones that pay. Ignored for models without a batch.
    batch_sizes: tuple[int, ...] = ()
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    # Input -> whole shape, batch as 1, for inputs with open extents.
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    precision: str = FP32  # of braid.core.precision.ASKED
    # Outputs may be so far from the FP32 reference, relative to the largest element of each.
    # None: as far as is usual for the precision.
    accepted_error: float | None = None
    samples: str = ""  # digest of the inputs that errors are measured on; empty: seeded ones
    pad: Mapping[str, str] = field(default_factory=dict)  # axis -> way, where nothing shows it
    no_pad: bool = False  # requests are never padded

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
        for name, shape in self.input_shapes.items():
            if len(shape) > MAX_DIMS or any(not 0 <= dim < 2**31 for dim in shape):
                raise InvalidRequest(f"input_shapes[{name!r}] is not a shape: {list(shape)[:20]}")
        object.__setattr__(self, "batch_sizes", sizes)
        shapes = {name: tuple(shape) for name, shape in self.input_shapes.items()}
        object.__setattr__(self, "input_shapes", shapes)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "batch_sizes": list(self.batch_sizes),
            "planner": self.planner.text,
            "input_shapes": {name: list(shape) for name, shape in self.input_shapes.items()},
        }
        if self.precision != FP32:
            document["precision"] = self.precision
        if self.accepted_error is not None:
            document["accepted_error"] = self.accepted_error
        if self.samples:
            document["samples"] = self.samples
        if self.pad:
            document["pad"] = dict(self.pad)
        if self.no_pad:
            document["no_pad"] = True
        return document


def options_from_json(document: Mapping[str, Any]) -> ModelOptions:
    return ModelOptions(
        tuple(document["batch_sizes"]),
        PlannerSettings.parse(document["planner"]),
        {name: tuple(shape) for name, shape in document["input_shapes"].items()},
        document.get("precision", FP32),
        document.get("accepted_error"),
        document.get("samples", ""),
        document.get("pad", {}),
        document.get("no_pad", False),
    )
