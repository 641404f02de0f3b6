"""Moving, viewing, joining and cutting."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.document import Symbol
from braid.engine.pt2.lowering_table import lowers

_FAR = 1 << 62  # ends beyond any extent


def same(use: Use, to: Builder, name: str = "self") -> None:
    """The operand under another name."""
    to.alias(use.outputs[0], use.tensor(name))


@lowers(
    *("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.contiguous.default"),
    *("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.positive.default"),
)
def identity(use: Use, to: Builder) -> None:
    """The same content."""
    same(use, to)


@lowers("aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default")
def dropout(use: Use, to: Builder) -> None:
    """At inference, the operand."""
    use.without_effect("p")
    use.require("train", False)
    same(use, to, "input")


@lowers("aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.device")
def convert(use: Use, to: Builder) -> None:
    """Another element type, if one is asked for."""
    use.without_effect("non_blocking", "copy", "pin_memory")
    dtype = use.dtype()
    if not dtype or dtype == use.dtype_of("self"):
        same(use, to)
    else:
        to.emit("braid.cast", [use.tensor("self")], use.output, dtype=dtype)


@lowers("aten.type_as.default", "aten.to.other")
def convert_like(use: Use, to: Builder) -> None:
    """The element type of another tensor."""
    use.without_effect("non_blocking", "copy")
    if use.dtype_of("self") == use.dtype_of("other"):
        use.tensor("other")
        same(use, to)
    else:
        to.emit("braid.cast_like", [use.tensor("self"), use.tensor("other")], use.output)


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def view(use: Use, to: Builder) -> None:
    """The same elements in another shape."""
    name = "shape" if use.target == "aten.reshape.default" else "size"
    attributes, host = use.extents(name, "shape")
    allow_zero = 0 in attributes.get("shape", [])
    operands = [use.tensor("self")]
    to.emit("braid.reshape", operands, use.output, host=host, allow_zero=allow_zero, **attributes)


@lowers("aten.flatten.using_ints")
def flatten(use: Use, to: Builder) -> None:
    """Join neighbouring axes."""
    rank = use.rank()
    start, end = use.axis("start_dim", rank, 0), use.axis("end_dim", rank, -1)
    if rank == 0:
        to.emit("braid.reshape", [use.tensor("self")], use.output, shape=[1], allow_zero=False)
    elif start == end:
        same(use, to)
    elif start == 1 and end == rank - 1:
        to.emit("braid.flatten", [use.tensor("self")], use.output, axis=1)
    elif end == rank - 1:  # leading extents are copied
        shape = [0] * start + [-1]
        to.emit("braid.reshape", [use.tensor("self")], use.output, shape=shape, allow_zero=False)
    else:
        _reshape_middle(use, to, start, end + 1, [-1])


@lowers("aten.unflatten.int")
def unflatten(use: Use, to: Builder) -> None:
    """Split an axis into several."""
    axis = use.axis("dim", use.rank())
    _reshape_middle(use, to, axis, axis + 1, use.integers("sizes"))


def _reshape_middle(use: Use, to: Builder, start: int, end: int, middle: list[int]) -> None:
    """Replace axes ``start`` to ``end`` by ``middle``; the others stay as they are."""
    x, rank = use.tensor("self"), use.rank()
    if end == rank and 0 not in middle:
        shape = [0] * start + middle
        to.emit("braid.reshape", [x], use.output, shape=shape, allow_zero=False)
        return
    parts = []
    if start:
        parts.append(to.emit("braid.shape", [x], start=0, end=start))
    parts.append(use.vector(list(middle)))
    if end < rank:
        parts.append(to.emit("braid.shape", [x], start=end, end=None))
    target = parts[0] if len(parts) == 1 else to.emit("aten.cat", parts, dim=0)
    to.emit("braid.reshape", [x], use.output, host={"shape": target}, allow_zero=True)


@lowers("aten.permute.default")
def permute(use: Use, to: Builder) -> None:
    """Reorder the axes."""
    rank = use.rank()
    dims = [dim % rank for dim in use.integers("dims")]
    to.emit("aten.permute", [use.tensor("self")], use.output, dims=dims)


@lowers("aten.transpose.int", "aten.t.default", "aten.numpy_T.default")
def transpose(use: Use, to: Builder) -> None:
    """Swap two axes."""
    rank = use.rank()
    dims = list(range(rank))
    if use.target == "aten.transpose.int":
        a, b = use.axis("dim0", rank), use.axis("dim1", rank)
        dims[a], dims[b] = dims[b], dims[a]
    else:
        dims.reverse()
    to.emit("aten.permute", [use.tensor("self")], use.output, dims=dims)


@lowers("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def squeeze(use: Use, to: Builder) -> None:
    """Drop axes of extent 1; a named axis of another extent stays."""
    shape = use.shape_of("self")
    wanted = use.integers("dim", list(range(len(shape))))
    axes = [axis % len(shape) for axis in wanted] if shape else []
    if any(not isinstance(shape[axis], int) for axis in axes):
        raise UnsupportedUse("squeeze of an axis whose extent is open")
    drop = sorted(axis for axis in axes if shape[axis] == 1)
    if drop:
        to.emit("braid.squeeze", [use.tensor("self")], use.output, axes=drop)
    else:
        same(use, to)


@lowers("aten.unsqueeze.default")
def unsqueeze(use: Use, to: Builder) -> None:
    """Insert an axis of extent 1."""
    axis = use.axis("dim", use.rank() + 1)
    to.emit("braid.unsqueeze", [use.tensor("self")], use.output, axes=[axis])


@lowers("aten.expand.default")
def expand(use: Use, to: Builder) -> None:
    """Broadcast; -1 keeps an extent."""
    use.without_effect("implicit")
    given = use.argument("size")
    items = given if isinstance(given, list) else [given]
    items = [1 if item == -1 else item for item in items]
    host = {"shape": use.vector(items)}
    to.emit("braid.expand", [use.tensor("self")], use.output, host=host)


@lowers("aten.expand_as.default")
def expand_as(use: Use, to: Builder) -> None:
    """Broadcast to another tensor's shape."""
    to.emit("braid.expand_as", [use.tensor("self"), use.tensor("other")], use.output)


@lowers("aten.repeat.default")
def repeat(use: Use, to: Builder) -> None:
    """Copies along each axis; more counts than axes add axes in front."""
    x = use.tensor("self")
    attributes, host = use.extents("repeats", "repeats")
    given = use.argument("repeats")
    missing = (len(given) if isinstance(given, list) else 1) - use.rank()
    if missing:
        x = to.emit("braid.unsqueeze", [x], axes=list(range(missing)))
    to.emit("braid.tile", [x], use.output, host=host, **attributes)


@lowers("aten.cat.default", "aten.concat.default")
def cat(use: Use, to: Builder) -> None:
    """Join along an axis."""
    to.emit("aten.cat", use.tensors("tensors"), use.output, dim=use.integer("dim", 0))


@lowers("aten.stack.default")
def stack(use: Use, to: Builder) -> None:
    """Join along a new axis."""
    axis = use.integer("dim", 0)
    parts = [to.emit("braid.unsqueeze", [part], axes=[axis]) for part in use.tensors("tensors")]
    to.emit("aten.cat", parts, use.output, dim=axis)


@lowers("aten.split.Tensor", "aten.chunk.default")
def split(use: Use, to: Builder) -> None:
    """Cut into equal parts, the last one smaller if it must be."""
    axis, names = use.integer("dim", 0), use.outputs
    if use.target == "aten.chunk.default":
        use.integer("chunks")
        attributes: dict[str, Any] = {"parts": len(names)}
    else:
        extent, size = use.shape_of("self")[axis], use.integer("split_size")
        if not isinstance(extent, int):
            raise UnsupportedUse("split of an axis whose extent is open")
        sizes = [min(size, extent - i * size) for i in range(len(names))]
        attributes = {"sizes": sizes, "parts": len(names)}
    to.emit("braid.split", [use.tensor("self")], names, axis=axis, **attributes)


@lowers("aten.split_with_sizes.default", "aten.split.sizes")
def split_with_sizes(use: Use, to: Builder) -> None:
    """Cut into parts of given sizes."""
    name = "split_size" if use.target == "aten.split.sizes" else "split_sizes"
    attributes, host = use.extents(name, "sizes")
    axis, names = use.integer("dim", 0), use.outputs
    operands = [use.tensor("self")]
    to.emit("braid.split", operands, names, host=host, axis=axis, parts=len(names), **attributes)


@lowers("aten.unbind.int")
def unbind(use: Use, to: Builder) -> None:
    """All slices along an axis."""
    x, axis = use.tensor("self"), use.integer("dim", 0)
    for index, name in enumerate(use.outputs):
        to.emit("aten.select", [x], [name], dim=axis, index=index)


@lowers("aten.select.int")
def select(use: Use, to: Builder) -> None:
    """One slice along an axis."""
    axis, index = use.integer("dim"), use.integer("index")
    to.emit("aten.select", [use.tensor("self")], use.output, dim=axis, index=index)


@lowers("aten.slice.Tensor", "aten.narrow.default")
def slice_(use: Use, to: Builder) -> None:
    """Part of an axis."""
    axis, step = use.integer("dim", 0), 1
    start: Any
    end: Any
    if use.target == "aten.narrow.default":
        start = use.integer("start")
        end = start + use.integer("length")
    else:
        start, end = use.argument("start"), use.argument("end")
        step = use.integer("step", 1)
    start, end = 0 if start is None else start, _FAR if end is None else end
    if (start, step) == (0, 1) and isinstance(end, int) and end >= _FAR:
        same(use, to)
        return
    attributes: dict[str, Any] = {"axes": [axis], "steps": [step]}
    host = {}
    for name, bound in (("starts", start), ("ends", end)):
        if isinstance(bound, Symbol):
            host[name] = use.vector([bound])
        elif isinstance(bound, int):
            attributes[name] = [bound]
        else:
            raise UnsupportedUse(f"{name} is not an integer")
    to.emit("braid.slice", [use.tensor("self")], use.output, host=host, **attributes)


@lowers("aten.flip.default")
def flip(use: Use, to: Builder) -> None:
    """Reverse axes."""
    axes = use.integers("dims")
    count = len(axes)
    to.emit(
        "braid.slice",
        [use.tensor("self")],
        use.output,
        starts=[-1] * count,
        ends=[-_FAR] * count,
        axes=axes,
        steps=[-1] * count,
    )


@lowers("aten.roll.default")
def roll(use: Use, to: Builder) -> None:
    """Shift along axes, what leaves at one end comes in at the other."""
    shifts, axes = use.integers("shifts"), use.integers("dims", [])
    if len(shifts) != len(axes):
        raise UnsupportedUse("a roll over the flattened tensor")
    value = use.tensor("self")
    for place, (shift, axis) in enumerate(zip(shifts, axes, strict=True), start=1):
        extent = use.shape_of("self")[axis]
        if not isinstance(extent, int):
            raise UnsupportedUse("a roll along an axis whose extent is open")
        cut = -shift % max(extent, 1)
        parts = [
            to.emit("braid.slice", [value], starts=[a], ends=[b], axes=[axis], steps=[1])
            for a, b in ((cut, _FAR), (0, cut))
        ]
        value = to.emit("aten.cat", parts, use.output if place == len(axes) else ("",), dim=axis)


@lowers("aten.pad.default", "aten.constant_pad_nd.default")
def pad(use: Use, to: Builder) -> None:
    """Pad or crop; amounts are listed from the last axis."""
    amounts, rank = use.integers("pad"), use.rank()
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    mode = use.text("mode", "constant")
    if mode not in modes or len(amounts) > 2 * rank or len(amounts) % 2:
        raise UnsupportedUse(f"mode={mode}, pad={amounts}")
    value = use.number("value", None)
    begins, ends = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        begins[rank - 1 - place], ends[rank - 1 - place] = amounts[2 * place : 2 * place + 2]
    to.emit(
        "braid.pad",
        [use.tensor("self")],
        use.output,
        pads=begins + ends,
        mode=modes[mode],
        value=float(value or 0.0),
    )


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(use: Use, to: Builder) -> None:
    """Channels into positions."""
    block = use.integer("upscale_factor")
    to.emit("braid.depth_to_space", [use.tensor("self")], use.output, block=block, mode="CRD")


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(use: Use, to: Builder) -> None:
    """Positions into channels."""
    block = use.integer("downscale_factor")
    to.emit("braid.space_to_depth", [use.tensor("self")], use.output, block=block, mode="CRD")


@lowers("aten.tril.default", "aten.triu.default")
def triangle(use: Use, to: Builder) -> None:
    """Lower or upper triangle."""
    upper, k = use.target == "aten.triu.default", use.integer("diagonal", 0)
    to.emit("braid.trilu", [use.tensor("self")], use.output, upper=upper, k=k)


@lowers("aten.select_scatter.default")
def select_scatter(use: Use, to: Builder) -> None:
    """The tensor with one slice replaced."""
    axis, index = use.axis("dim", use.rank()), use.integer("index")
    source = to.emit("braid.unsqueeze", [use.tensor("src")], axes=[axis])
    end = index + 1 if index != -1 else _FAR
    _placed(use, to, source, axis, index, end, 1)


@lowers("aten.slice_scatter.default")
def slice_scatter(use: Use, to: Builder) -> None:
    """The tensor with part of an axis replaced."""
    axis = use.axis("dim", use.rank(), 0)
    start, end = use.number("start", None), use.number("end", None)
    bounds = (0 if start is None else int(start), _FAR if end is None else int(end))
    _placed(use, to, use.tensor("src"), axis, *bounds, use.integer("step", 1))


def _placed(use: Use, to: Builder, source: str, axis: int, start: int, end: int, step: int) -> None:
    operands = [use.tensor("self"), source]
    to.emit("braid.place", operands, use.output, axis=axis, start=start, end=end, step=step)
