"""Likely extents where a model leaves its input shapes open."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, product

from braid.core.errors import ModelImportError
from braid.core.graph import OpGraph
from braid.core.tensor import Dim, TensorType
from braid.engine.ops.dtypes import torch_dtype

_IMAGES = (  # height, width
    *((224, 224), (48, 320), (128, 128), (64, 64), (320, 320), (96, 96), (640, 640)),
    *((32, 320), (32, 100), (299, 299), (28, 28), (32, 32)),
)
_IMAGE = tuple(dict.fromkeys(width for _, width in _IMAGES))  # one of them open
_TEXT_LINE = (320, 160, 100, 640, 128, 64)  # widths where the height is fixed and small
_TOKENS = (128, 64, 16, 512, 1, 2)
_SIGNAL = (576, 512, 1024, 16000, 128, 64, 16, 256, 1)
_MOST_STATED = 16
_FEATURES = (128, 64, 16, 512, 576, 100, 1, 2)


def shape_candidates(
    template: OpGraph, given: Mapping[str, tuple[int, ...]]
) -> Iterator[dict[str, TensorType]]:
    """Static specs of the inputs, the likeliest first.

    Symbols take the same place of their lists first (square images), then every combination. The
    lists end with extents that operators state: an export may leave an axis open and work at one
    extent only. Raises ``ModelImportError`` if a given shape does not fit.
    """
    bound = _bind_given(template, given)
    stated = _stated(template)
    slots: dict[tuple[str, ...], Sequence[tuple[int, ...]]] = {}
    likely: list[Sequence[tuple[int, ...]]] = []
    for spec in template.inputs.values():
        for symbols, choices in _slots(spec, bound):
            if not any(set(symbols) & set(slot) for slot in slots):
                likely.append(choices)
                others = stated
                if symbols == spec.shape[:1]:  # the batch; of one axis, it may be a signal, too
                    others = [*_SIGNAL, *stated] if _is_signal(spec) else []
                slots[symbols] = list(
                    dict.fromkeys([*choices, *((n,) * len(symbols) for n in others)])
                )
    lists: list[Sequence[tuple[int, ...]]] = list(slots.values())
    longest = max(map(len, lists), default=1)
    diagonal = [tuple(some[min(i, len(some) - 1)] for some in lists) for i in range(longest)]
    tried = set()
    for choice in chain(diagonal, product(*likely), product(*lists)):
        if choice in tried:
            continue
        tried.add(choice)
        chosen = dict(bound)
        for slot, extents in zip(slots, choice, strict=True):
            chosen.update(zip(slot, extents, strict=True))
        yield {name: spec.bind(chosen) for name, spec in template.inputs.items()}


def wanted_shapes(inputs: Mapping[str, TensorType]) -> str:
    """Options that say the shapes of inputs, with a name where the model leaves an extent open."""
    options = []
    for name, spec in inputs.items():
        extents = [
            "1" if axis == 0 and isinstance(dim, str) and not _is_signal(spec) else str(dim).upper()
            for axis, dim in enumerate(spec.shape)
        ]
        if any(isinstance(dim, str) for dim in spec.shape[0 if _is_signal(spec) else 1 :]):
            options.append(f"--input-shape {name}={','.join(extents)}")
    return " ".join(options)


def _is_signal(spec: TensorType) -> bool:
    """Whether an input may be one signal, such as samples of audio, without a batch."""
    return len(spec.shape) == 1 and torch_dtype(spec.dtype).is_floating_point


def _stated(template: OpGraph) -> list[int]:
    """Extents in constant shapes, and those of constants that are added to values; at most 16."""
    shapes: list[object] = [operator.attributes.get("shape") for operator in template.operators]
    added = [op.inputs for op in template.operators if op.kind == "aten.add"]
    shapes += [template.constants[n].shape for n in chain(*added) if n in template.constants]
    extents = chain(*(shape for shape in shapes if isinstance(shape, list | tuple)))
    return [n for n in dict.fromkeys(extents) if isinstance(n, int) and n > 1][:_MOST_STATED]


def _slots(
    spec: TensorType, bound: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], Sequence[tuple[int, ...]]]]:
    """Open symbols of one input, those of an image's height and width together, with extents."""
    images = [d for d in _image_axes(spec.shape) if isinstance(d, str) and d not in bound]
    if len(set(images)) == 2:
        yield tuple(images), _IMAGES
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, str) and dim not in bound:
            yield (dim,), [(extent,) for extent in _extents(spec, axis)]


def _bind_given(template: OpGraph, given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Extents of the symbols that the caller's example shapes decide."""
    bound: dict[str, int] = {}
    for name, shape in given.items():
        spec = template.inputs.get(name)
        if spec is None:
            raise ModelImportError(
                f"example shape for {name!r}: the model's inputs are {sorted(template.inputs)}"
            )
        for declared, extent in zip(spec.shape, shape, strict=False):
            if isinstance(declared, str):
                bound.setdefault(declared, extent)
        if len(shape) != len(spec.shape) or spec.bind(bound).shape != tuple(shape):
            raise ModelImportError(
                f"example shape {list(shape)} does not fit {name!r}, which is {spec}; give "
                f"{wanted_shapes({name: spec}) or 'none: nothing is open but the batch'}"
            )
    return bound


def _image_axes(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Height and width of an image with channels first or last; empty if it is none."""
    if len(shape) != 4:
        return ()
    return shape[1:3] if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else shape[2:]


def _extents(spec: TensorType, axis: int) -> Sequence[int]:
    """Likely extents of an open dimension, from what surrounds it."""
    image = _image_axes(spec.shape)
    if axis == 0:
        return (1,)
    if spec.shape[axis] in image:
        height = image[0]
        line = isinstance(height, int) and height <= 64
        return _TEXT_LINE if line else _IMAGE
    if image:
        return (3, 1, 4)
    if not torch_dtype(spec.dtype).is_floating_point:
        return _TOKENS
    return _SIGNAL if len(spec.shape) == 2 else _FEATURES
