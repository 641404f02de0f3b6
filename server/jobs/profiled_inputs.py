"""The inputs a model is profiled with: whole, static shapes for one batch size."""

from __future__ import annotations

from collections.abc import Mapping

from braid.core.errors import InvalidRequest
from braid.core.tensor import BATCH, TensorSpec
from braid.engine.importer.host.report import Report


def profiled_inputs(
    inputs: Mapping[str, TensorSpec],
    report: Report,
    wanted: Mapping[str, tuple[int, ...]],
    batch_size: int,
) -> dict[str, TensorSpec]:
    """Static specs of all inputs, from the import's example shapes or those that were asked for.

    Args:
        inputs: of the template; the batch is the symbol ``BATCH``, other extents may be open.
        report: of the import.
        wanted: input -> whole shape with the batch as 1, as given at registration.
        batch_size: rows; ignored for models without a batch.

    Raises:
        InvalidRequest: a wanted shape is of another input, rank or fixed extent.
    """
    if unknown := sorted(set(wanted) - set(inputs)):
        raise InvalidRequest(
            f"input_shapes names {', '.join(unknown)}; the model's inputs: {', '.join(inputs)}"
        )
    specs = {}
    for name, spec in inputs.items():
        shape = wanted.get(name, report.example_shapes[name])
        fits = len(shape) == len(spec.shape) and all(
            isinstance(dim, str) or dim == extent
            for dim, extent in zip(spec.shape, shape, strict=True)
        )
        if not fits:
            raise InvalidRequest(f"input_shapes[{name!r}] is {list(shape)}, the model takes {spec}")
        specs[name] = TensorSpec(
            spec.dtype,
            tuple(
                batch_size if dim == BATCH else extent
                for dim, extent in zip(spec.shape, shape, strict=True)
            ),
        )
    return specs
