"""Padding that an import showed to be exact, checked again on requests of the live traffic.

Only one request is kept at a time, in memory, until it was checked. Both runs take the same batcher
as all requests do (``braid.server.models.padding_checks``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from braid.core.inputs import ShapeClass

if TYPE_CHECKING:
    from braid.server.inference.requests import CheckedRequest

EVERY = 1000
"""One request of so many that ran padded is checked, and the first one."""

MOST_BYTES = 1 << 20
"""Requests with more are not kept."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A request that ran padded."""

    request: CheckedRequest
    shape_class: ShapeClass  # that it ran in: longer than its own


class PaddingCheck:
    """Verdict of the live traffic on the padding of one replica."""

    def __init__(self) -> None:
        self.checked = 0  # requests
        self.failure = ""  # why nothing is padded any more
        self.sample: Sample | None = None  # to be checked
        self._left = 0  # requests that run padded until one is kept

    def ran(self, request: CheckedRequest, shape_class: ShapeClass) -> None:
        """Count a request that ran in ``shape_class``; keeps a copy of one to check."""
        if request.shape_class == shape_class or self.sample is not None or self.failure:
            return
        self._left -= 1
        if self._left >= 0:
            return
        parts = request.inputs.items()
        inputs = {name: part for name, part in parts if isinstance(part, bytes | memoryview)}
        if sum(map(len, inputs.values())) > MOST_BYTES:
            return
        assert len(inputs) == len(request.inputs), "what is stored elsewhere is not padded"
        self._left = EVERY
        inputs = {name: bytes(part) for name, part in inputs.items()}
        self.sample = Sample(replace(request, inputs=inputs, reply=None), shape_class)

    def compared(self, error: float, tolerance: float) -> None:
        """Take the error of the padded answer to the sample, relative to its largest element."""
        self.checked += 1
        if not error <= tolerance:  # also of NaN
            self.failure = (
                f"outputs of a request had an error of {error:.2g} as it was padded; "
                f"{tolerance:.2g} is allowed"
            )
