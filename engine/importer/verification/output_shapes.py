"""Symbolic shapes of the outputs: extents that follow the batch or an input.

    at the example's extents    y [1, 1, 160, 256]
    at twice the height         y [1, 1, 320, 256]
    at twice the width          y [1, 1, 160, 512]   ──>  y [batch, 1, height, width]

An extent that is the same at all extents tried is fixed; one that equals an input's open extent
each time takes its name; any other gets a name of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from braid.core.errors import InvalidRequest
from braid.core.graph import OpGraph
from braid.core.tensor import BATCH, Dim, TensorType
from braid.engine.importer.host.report import BatchAxes
from braid.engine.importer.verification.verify import Subject
from braid.engine.ops.whole import output_specs
from braid.engine.passes.specialise import specialise

_SCALES = (2, 3)  # other extents to try, as multiples of the example's


def with_output_specs(subject: Subject, batch: BatchAxes | None) -> OpGraph:
    """The verified template with a symbolic spec for each output; ``batch``: None without one."""
    template = subject.template
    extents = _open_extents(template.inputs, subject.example.specs)
    others = (_with_another_extent(subject, extents, symbol) for symbol in extents)
    runs = [(extents, _output_shapes(subject, extents)), *filter(None, others)]
    specs = {}
    for name, value in template.outputs.items():
        first = runs[0][1][name]
        axis = batch.outputs.get(name) if batch else None
        shape: list[Dim] = [
            BATCH
            if at == axis
            else _extent(
                [(extents, shapes[name].shape[at]) for extents, shapes in runs], f"{name}_{at}"
            )
            for at in range(len(first.shape))
        ]
        specs[value] = TensorType(first.dtype, tuple(shape))
    return dataclasses.replace(template, specs={**template.specs, **specs})


def _with_another_extent(
    subject: Subject, extents: Mapping[str, int], symbol: str
) -> tuple[dict[str, int], dict[str, TensorType]] | None:
    """Extents with only ``symbol`` changed, and the outputs there; None if nothing else runs."""
    for scale in _SCALES:
        scaled = {**extents, symbol: extents[symbol] * scale}
        try:
            return scaled, _output_shapes(subject, scaled)
        except InvalidRequest:
            continue
    return None


def _open_extents(
    template: Mapping[str, TensorType], example: Mapping[str, TensorType]
) -> dict[str, int]:
    """The example's extent for each symbol other than the batch."""
    return {
        symbol: int(extent)
        for name, spec in template.items()
        for symbol, extent in zip(spec.shape, example[name].shape, strict=True)
        if isinstance(symbol, str) and symbol != BATCH
    }


def _output_shapes(subject: Subject, extents: Mapping[str, int]) -> dict[str, TensorType]:
    """Specs at batch 1, with names where content decides; ``InvalidRequest`` if it does not run."""
    inputs = {
        name: spec.bind({BATCH: 1, **extents}) for name, spec in subject.template.inputs.items()
    }
    graph, _ = specialise(subject.template, subject.weights, inputs, subject.example.static_values)
    return output_specs(graph)


def _extent(runs: list[tuple[Mapping[str, int], Dim]], name: str) -> Dim:
    """One extent over all runs: (open extents of the run, extent of the output)."""
    symbols, first = runs[0]
    if isinstance(first, str):
        return first
    if len(runs) > 1 or not symbols:
        if all(extent == first for _, extent in runs):
            return first
        for symbol in symbols:
            if all(extents[symbol] == extent for extents, extent in runs):
                return symbol
    return name
