"""Inputs of a call, checked against those of a model; names the first mistake.

Knows no protocol. Everything a caller can get wrong about a tensor ends here, as InvalidTensor with
the name of the input, what came and what is wanted.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from braid.core.errors import InvalidTensor
from braid.core.pieces import Work
from braid.core.program import ProgramKey, StaticContent
from braid.core.strings import MAX_STRINGS, Strings, read_strings
from braid.core.tensor import BATCH, BYTES, DTYPE_BYTES, TensorType

MAX_SEEN_SHAPES = 256
"""Checked combinations of inputs that are remembered for each model, the first ones it gets."""

MAX_EMPTY_EXTENT = 1 << 16
"""Largest extent beside one of 0: no bytes bound it, and rows are looked at one by one."""


class StoredContent(Protocol):
    """Content that lies elsewhere and is fetched when a batch is formed."""

    def __len__(self) -> int:
        """Size in bytes."""

    def __bytes__(self) -> bytes:
        """Copy of the content."""

    def read_into(self, memory: memoryview, start: int) -> None:
        """Fill ``memory`` from byte ``start`` on; raises InvalidRequest if it cannot be read."""


Content = bytes | memoryview | StoredContent | Strings
"""Raw little-endian elements in row-major order; of BYTES, ``Strings`` once they are checked."""


@dataclass(frozen=True, slots=True)
class GivenTensor:
    """Input of a request, not checked."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Content


@dataclass(frozen=True, slots=True)
class ShapeClass:
    """Input specs and static content that requests must have in common to share a batch."""

    inputs: tuple[tuple[str, TensorType], ...]  # batched models: one row
    static: StaticContent = ()
    is_alone: bool = False  # of whole requests, each a batch of its own with outputs of any extents
    _hash: int = field(init=False, repr=False, compare=False)  # asked for many times a request
    has_strings: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        takes_text = any(spec.dtype == BYTES for _, spec in self.inputs)
        object.__setattr__(self, "has_strings", takes_text)
        object.__setattr__(self, "_hash", hash((self.inputs, self.static)))

    def __hash__(self) -> int:
        return self._hash

    def program(self, digest: str, rows: int, *, batched: bool) -> ProgramKey:
        """Program of a batch of so many rows, in FP32 on its usual kernels."""
        inputs = self.inputs
        if batched and not self.is_alone:
            inputs = tuple((name, spec.at_rows(rows)) for name, spec in inputs)
        return ProgramKey(digest, inputs, self.static, is_loose=self.is_alone)


class CheckedModel(Protocol):
    """What a request is checked against: a replica, or a network without a server."""

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Inputs by name, with symbols for open extents."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all outputs."""

    @property
    def batched(self) -> bool:
        """Whether a request may have any number of rows."""

    @property
    def static_inputs(self) -> Sequence[str]:
        """Inputs whose content decides shapes."""

    @property
    def seen_shapes(self) -> dict[Hashable, tuple[ShapeClass, int]]:
        """Memory of inputs that were right, which is filled here."""

    @property
    def known_classes(self) -> dict[ShapeClass, ShapeClass]:
        """One object for equal classes, filled here: to look for it compares no contents."""


def named_inputs(model: CheckedModel, inputs: Sequence[GivenTensor]) -> Sequence[GivenTensor]:
    """Return the inputs; one without a name is the model's only input."""
    if len(inputs) != 1 or inputs[0].name or len(model.inputs) != 1:
        return inputs
    return [replace(inputs[0], name=next(iter(model.inputs)))]


def check_inputs(
    model: CheckedModel, inputs: Sequence[GivenTensor], *, is_alone: bool = False
) -> tuple[ShapeClass, int]:
    """Return the inputs' shape class and rows. Inputs that look like checked ones pass at once.

    The file's names of extents are hints: a request that gives one of them several extents runs
    alone, as does one for which ``is_alone`` asks for that.
    """
    looks = tuple(
        [(tensor.name, tensor.dtype, tensor.shape, len(tensor.data)) for tensor in inputs]
    )
    checked = model.seen_shapes.get(looks)
    if checked is not None and checked[0].is_alone >= is_alone:
        return checked
    tensors = _by_name(inputs, model.inputs)
    symbols: dict[str, set[int]] = {}
    specs = {
        name: _check_tensor(tensors[name], spec, symbols) for name, spec in model.inputs.items()
    }
    rows = max(symbols[BATCH]) if model.batched else 1
    if is_alone or any(len(extents) > 1 for extents in symbols.values()):
        shape_class, rows = ShapeClass(tuple(specs.items()), is_alone=True), 1
    else:
        if model.batched:
            specs = {name: spec.at_rows(1) for name, spec in specs.items()}
        static = tuple((name, bytes(tensors[name].data)) for name in model.static_inputs)
        shape_class = ShapeClass(tuple(specs.items()), static)
    if not model.static_inputs and len(model.seen_shapes) < MAX_SEEN_SHAPES:
        shape_class = model.known_classes.setdefault(shape_class, shape_class)
        model.seen_shapes[looks] = shape_class, rows
    return shape_class, rows


def _by_name(
    tensors: Sequence[GivenTensor], wanted: Mapping[str, TensorType]
) -> dict[str, GivenTensor]:
    """Return the inputs by name: each wanted one exactly once, and no other."""
    by_name: dict[str, GivenTensor] = {}
    listing = ", ".join(f"{name} {spec}" for name, spec in wanted.items())
    for tensor in tensors:
        if tensor.name in by_name:
            raise InvalidTensor(f"input {tensor.name!r} is given twice")
        if not tensor.name and tensor.name not in wanted:
            raise InvalidTensor(f"say which input is meant; the model's inputs: {listing}")
        if tensor.name not in wanted:
            raise InvalidTensor(f"the model has no input {tensor.name!r}; its inputs: {listing}")
        by_name[tensor.name] = tensor
    if missing := [name for name in wanted if name not in by_name]:
        raise InvalidTensor(f"missing input(s) {', '.join(missing)}; the model takes: {listing}")
    return by_name


def _check_tensor(
    tensor: GivenTensor, spec: TensorType, symbols: dict[str, set[int]]
) -> TensorType:
    """Check one input against its spec; adds the extents of the spec's symbols."""
    name, shape = tensor.name, tensor.shape
    if tensor.dtype != spec.dtype:
        raise InvalidTensor(
            f"input {name!r} has dtype {tensor.dtype!r}, the model takes {spec.dtype}"
        )
    if len(shape) != len(spec.shape):
        raise InvalidTensor(
            f"input {name!r} has rank {len(shape)} (shape {list(shape)}), the model takes {spec}"
        )
    for axis, (extent, dim) in enumerate(zip(shape, spec.shape, strict=True)):
        if extent < 0:
            raise InvalidTensor(
                f"input {name!r} has extent {extent} at axis {axis}; extents must be at least 0"
            )
        if isinstance(dim, str):
            symbols.setdefault(dim, set()).add(extent)
        elif extent != dim:
            raise InvalidTensor(
                f"input {name!r} has shape {list(shape)}, the model takes {spec}: "
                f"axis {axis} must be {dim}"
            )
    if 0 in shape and max(shape) > MAX_EMPTY_EXTENT:
        raise InvalidTensor(
            f"input {name!r} has shape {list(shape)}; extents of a tensor without elements may be "
            f"{MAX_EMPTY_EXTENT} at most"
        )
    if spec.dtype == BYTES:
        return TensorType(BYTES, shape)  # looked at later, each time
    size = math.prod(shape) * DTYPE_BYTES[spec.dtype]
    if len(tensor.data) != size:
        raise InvalidTensor(
            f"input {name!r} has {len(tensor.data)} bytes of data; "
            f"{spec.dtype}{list(shape)} takes {size}"
        )
    return TensorType(spec.dtype, shape)


def checked_strings(tensor: GivenTensor) -> Work[Strings]:
    """Return the strings of an input whose shape is checked; raises InvalidTensor."""
    name, count = tensor.name, math.prod(tensor.shape)
    if not isinstance(tensor.data, bytes | memoryview):
        raise InvalidTensor(
            f"input {name!r} takes strings, which are not read from shared memory; "
            "send them in the request"
        )
    if count > MAX_STRINGS:
        raise InvalidTensor(
            f"input {name!r} has {count} strings; a request may have {MAX_STRINGS} in each input"
        )
    try:
        return (yield from read_strings(tensor.data, count))
    except ValueError as error:
        raise InvalidTensor(f"input {name!r} {error}") from None
