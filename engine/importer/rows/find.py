"""Whether the rows of requests may share a batch: what the graph of a model shows.

An extent that a file leaves open may decide what a model does, so the walk is made again where
all of them are larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import onnx

from braid.core.errors import InvalidRequest
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.rows.walk import BATCHES, batch_axes
from braid.engine.importer.rows.whole import batch_axes_of_whole
from braid.engine.importer.verification.verify import Subject
from braid.engine.ops.whole import KIND

_SCALES = (2, 3)  # other extents to walk at, as multiples of the example's


def show_rows_apart(subject: Subject) -> None:
    """Check by the graph of ``subject`` that no row of a batch depends on another one.

    Raises ``RowsMeet``, naming the operator, or ``InvalidRequest`` if it does not run in a batch.
    """
    _walk(subject, subject.example.specs)
    symbols = {
        dim: extent
        for name, spec in subject.template.inputs.items()
        for dim, extent in zip(spec.shape, subject.example.specs[name].shape, strict=True)
        if isinstance(dim, str) and dim != BATCH
    }
    for scale in _SCALES if symbols and not subject.example.samples else ():
        extents = {symbol: int(extent) * scale for symbol, extent in symbols.items()}
        with suppress(InvalidRequest):
            _walk(
                subject,
                {
                    name: spec.bind({BATCH: 1, **extents})
                    for name, spec in subject.template.inputs.items()
                },
            )
            break


def _walk(subject: Subject, specs: Mapping[str, TensorType]) -> None:
    if any(unit.kind == KIND for unit in subject.template.operators):
        (unit,) = subject.template.operators
        content = subject.weights[unit.inputs[0]].numpy().tobytes()
        example = replace(subject.example, specs=specs)
        drawn = [example.draw(rows, seed=0) for rows in BATCHES]
        batch_axes_of_whole(onnx.load_from_string(content), drawn)
    else:
        batch_axes(subject.template, subject.weights, specs)
