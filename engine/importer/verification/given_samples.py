"""Samples of a model's owner as content of an import's trials, where made-up content is refused.

samples ──the model's types and shapes?──> Example ──both executors run the first?──> Example
"""

from collections.abc import Collection, Mapping

import numpy as np
from torch import Tensor

from braid.core.errors import ImportLimitExceeded, InvalidRequest, ModelImportError
from braid.core.tensor import TensorType
from braid.engine.importer.host.samples import Arrays, check_type
from braid.engine.importer.verification.example_inputs import (
    ContentRefused,
    Example,
    TooMuchMemory,
    Trials,
)
from braid.engine.importer.verification.reference import ReferenceFailed
from braid.engine.ops.dtypes import tensor_of
from braid.engine.passes.specialise import static_inputs

Shapes = Mapping[str, tuple[int, ...]]


def with_shapes_of(samples: Arrays, inputs: Mapping[str, TensorType], given: Shapes) -> Shapes:
    """Return the shapes of one sample, by input; ``given`` where samples do not fit the inputs."""
    try:
        example = _example(inputs, samples, (), given)
    except ModelImportError:
        return given
    return {
        name: tuple(int(extent) for extent in spec.shape) for name, spec in example.specs.items()
    }


def sampled_example(trials: Trials, given: Shapes, samples: Arrays) -> Example:
    """Samples as an example that template and reference run; the first sets static inputs.

    Raises ``ImportLimitExceeded`` for memory, ``ModelImportError`` if they do not fit or run.
    """
    template, reference = trials.template, trials.reference
    example = _example(template.inputs, samples, static_inputs(template), given)
    try:
        trials.check(example.specs, example.static_values)
    except TooMuchMemory as error:
        raise ImportLimitExceeded(str(error), "memory_bytes") from error
    except InvalidRequest as error:
        raise ContentRefused(f"the model does not run on the samples: {error}") from error
    try:
        reference.run(example.draw(None, seed=0))
    except ReferenceFailed as error:
        said = f"the model does not run on the samples: {reference.name}: {error}"
        raise ContentRefused(said) from error
    return example


def _example(
    inputs: Mapping[str, TensorType], samples: Arrays, static: Collection[str], given: Shapes
) -> Example:
    if set(samples) != set(inputs):
        raise ModelImportError(
            f"no made-up content runs, and the samples are of {', '.join(sorted(samples))}; give "
            f"one array for each of the model's inputs: {', '.join(inputs)}"
        )
    extents: dict[str, int] = {}
    tensors = dict[str, Tensor]()
    for name, spec in inputs.items():
        try:
            check_type(name, samples[name], spec)
        except InvalidRequest as error:
            raise ModelImportError(str(error)) from error
        array = samples[name]
        shape = array.shape[1:]
        if len(shape) + 1 == len(spec.shape):  # one row
            shape = (1, *shape)
        for dim, extent in zip(spec.shape, shape, strict=False):
            if isinstance(dim, str):
                extents.setdefault(dim, extent)
        if len(shape) != len(spec.shape) or spec.bind(extents).shape != shape:
            raise ModelImportError(
                f"samples[{name!r}] has the shape {list(array.shape)}; the model takes {spec}, so "
                f"give [{', '.join(['samples', *map(str, spec.shape)])}]"
            )
        if tuple(given.get(name, shape)) != shape:
            raise ModelImportError(
                f"a sample of {name!r} has the shape {list(shape)}, --input-shape says "
                f"{list(given[name])}; give samples of that shape"
            )
        content = np.array(array.reshape(len(array), *shape), order="C")
        tensors[name] = tensor_of(content)
    specs = {name: spec.bind(extents) for name, spec in inputs.items()}
    fixed = {name: tensors.pop(name)[0] for name in static}
    return Example(specs, fixed, samples=tensors)
