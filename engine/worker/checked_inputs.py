"""Inputs that errors of plans are measured on: samples of the model's owner, else seeded ones.

samples.npz ──batches of the program's rows──> inputs, inputs, ...
seeded      ──────────────────────────────────> inputs
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from braid.core.errors import InvalidArtefact
from braid.core.graph import OpGraph
from braid.core.program import ProgramKey
from braid.core.tensor import BATCH, TensorType
from braid.engine.importer.host.samples import read_samples
from braid.engine.runtime.arrays import Array, Arrays, static_shape
from braid.engine.worker.models import seeded_inputs, static_arrays


def inputs_to_check(
    key: ProgramKey,
    graph: OpGraph,
    template: Mapping[str, TensorType],
    samples: str,
    content: Arrays = MappingProxyType({}),
) -> Iterator[tuple[dict[str, Array], int]]:
    """Inputs of a program, with the number of samples in each; 0 for seeded ones.

    ``template`` says what has a batch, ``content`` what is known of seeded inputs. Raises
    ``InvalidArtefact`` if the file ``samples`` (or "") does not fit the model.
    """
    static = static_arrays(key)
    if not samples:
        yield seeded_inputs(graph, {**content, **static}, 1), 0
        return
    arrays = read_samples(Path(samples))
    specs = {name: spec for name, spec in key.specs.items() if name not in static}
    if not set(specs) <= set(arrays):
        raise InvalidArtefact("the samples are of another model")
    yield from _batches(arrays, specs, template, static)


def _batches(
    arrays: Arrays,
    specs: Mapping[str, TensorType],
    template: Mapping[str, TensorType],
    static: Arrays,
) -> Iterator[tuple[dict[str, Array], int]]:
    """Cut samples into batches; the last one is filled up with the first samples."""
    count = len(next(iter(arrays.values())))
    batched = [name for name in specs if template[name].shape[:1] == (BATCH,)]
    rows = int(specs[batched[0]].shape[0]) if batched else 1
    for first in range(0, count, rows):
        indices = np.arange(first, first + rows) % count
        batch = {
            name: _shaped(arrays[name][indices if name in batched else indices[0]], spec)
            for name, spec in specs.items()
        }
        yield {**batch, **static}, min(rows, count - first)


def _shaped(array: Array, spec: TensorType) -> Array:
    shape = static_shape(spec)
    if array.size != math.prod(shape):
        raise InvalidArtefact(f"the samples have the shape {list(array.shape)}, not {spec}")
    return np.array(array, order="C").reshape(shape)
