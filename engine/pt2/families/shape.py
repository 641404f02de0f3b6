"""Lowering of operators that move, view, join and cut."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.document import Symbol
from braid.engine.pt2.lowering_table import lowers

_FAR = 1 << 62  # ends beyond any extent


def same(call: CallArguments, to: Builder, name: str = "self") -> None:
    """Name the operand as the result too; no operator is written."""
    to.alias(call.outputs[0], call.tensor(name))


@lowers(
    *("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.contiguous.default"),
    *("aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.positive.default"),
)
def identity(call: CallArguments, to: Builder) -> None:
    same(call, to)


@lowers("aten.dropout.default", "aten.native_dropout.default", "aten.feature_dropout.default")
def dropout(call: CallArguments, to: Builder) -> None:
    """Name the operand as the result: nothing is dropped at inference."""
    call.without_effect("p")
    call.require("train", False)
    same(call, to, "input")


@lowers("aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.device")
def convert(call: CallArguments, to: Builder) -> None:
    call.without_effect("non_blocking", "copy", "pin_memory")
    dtype = call.dtype()
    if not dtype or dtype == call.dtype_of("self"):
        same(call, to)
    else:
        to.emit("braid.cast", [call.tensor("self")], call.output, dtype=dtype)


@lowers("aten.type_as.default", "aten.to.other")
def convert_like(call: CallArguments, to: Builder) -> None:
    call.without_effect("non_blocking", "copy")
    if call.dtype_of("self") == call.dtype_of("other"):
        call.tensor("other")
        same(call, to)
    else:
        to.emit("braid.cast_like", [call.tensor("self"), call.tensor("other")], call.output)


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def view(call: CallArguments, to: Builder) -> None:
    name = "shape" if call.target == "aten.reshape.default" else "size"
    attributes, host = call.extents(name, "shape")
    allow_zero = 0 in attributes.get("shape", [])
    operands = [call.tensor("self")]
    to.emit("braid.reshape", operands, call.output, host=host, allow_zero=allow_zero, **attributes)


@lowers("aten.flatten.using_ints")
def flatten(call: CallArguments, to: Builder) -> None:
    rank = call.rank()
    start, end = call.axis("start_dim", rank, 0), call.axis("end_dim", rank, -1)
    if rank == 0:
        to.emit("braid.reshape", [call.tensor("self")], call.output, shape=[1], allow_zero=False)
    elif start == end:
        same(call, to)
    elif start == 1 and end == rank - 1:
        to.emit("braid.flatten", [call.tensor("self")], call.output, axis=1)
    elif end == rank - 1:  # leading extents are copied
        shape = [0] * start + [-1]
        to.emit("braid.reshape", [call.tensor("self")], call.output, shape=shape, allow_zero=False)
    else:
        _reshape_middle(call, to, start, end + 1, [-1])


@lowers("aten.unflatten.int")
def unflatten(call: CallArguments, to: Builder) -> None:
    axis = call.axis("dim", call.rank())
    _reshape_middle(call, to, axis, axis + 1, call.integers("sizes"))


def _reshape_middle(
    call: CallArguments, to: Builder, start: int, end: int, middle: list[int]
) -> None:
    """Replace axes ``start`` to ``end`` by ``middle``; the others stay as they are."""
    x, rank = call.tensor("self"), call.rank()
    if end == rank and 0 not in middle:
        shape = [0] * start + middle
        to.emit("braid.reshape", [x], call.output, shape=shape, allow_zero=False)
        return
    parts = []
    if start:
        parts.append(to.emit("braid.shape", [x], start=0, end=start))
    parts.append(call.vector(list(middle)))
    if end < rank:
        parts.append(to.emit("braid.shape", [x], start=end, end=None))
    target = parts[0] if len(parts) == 1 else to.emit("aten.cat", parts, dim=0)
    to.emit("braid.reshape", [x], call.output, host={"shape": target}, allow_zero=True)


@lowers("aten.permute.default")
def permute(call: CallArguments, to: Builder) -> None:
    rank = call.rank()
    dims = [dim % rank for dim in call.integers("dims")]
    to.emit("aten.permute", [call.tensor("self")], call.output, dims=dims)


@lowers("aten.transpose.int", "aten.t.default", "aten.numpy_T.default")
def transpose(call: CallArguments, to: Builder) -> None:
    rank = call.rank()
    dims = list(range(rank))
    if call.target == "aten.transpose.int":
        a, b = call.axis("dim0", rank), call.axis("dim1", rank)
        dims[a], dims[b] = dims[b], dims[a]
    else:
        dims.reverse()
    to.emit("aten.permute", [call.tensor("self")], call.output, dims=dims)


@lowers("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def squeeze(call: CallArguments, to: Builder) -> None:
    """Drop axes of extent 1; a named axis of another extent stays."""
    shape = call.shape_of("self")
    wanted = call.integers("dim", list(range(len(shape))))
    axes = [axis % len(shape) for axis in wanted] if shape else []
    if any(not isinstance(shape[axis], int) for axis in axes):
        raise UnsupportedUse("squeeze of an axis whose extent is open")
    drop = sorted(axis for axis in axes if shape[axis] == 1)
    if drop:
        to.emit("braid.squeeze", [call.tensor("self")], call.output, axes=drop)
    else:
        same(call, to)


@lowers("aten.unsqueeze.default")
def unsqueeze(call: CallArguments, to: Builder) -> None:
    axis = call.axis("dim", call.rank() + 1)
    to.emit("braid.unsqueeze", [call.tensor("self")], call.output, axes=[axis])


@lowers("aten.expand.default")
def expand(call: CallArguments, to: Builder) -> None:
    """Broadcast; -1 keeps an extent."""
    call.without_effect("implicit")
    given = call.argument("size")
    items = given if isinstance(given, list) else [given]
    items = [1 if item == -1 else item for item in items]
    host = {"shape": call.vector(items)}
    to.emit("braid.expand", [call.tensor("self")], call.output, host=host)


@lowers("aten.expand_as.default")
def expand_as(call: CallArguments, to: Builder) -> None:
    to.emit("braid.expand_as", [call.tensor("self"), call.tensor("other")], call.output)


@lowers("aten.repeat.default")
def repeat(call: CallArguments, to: Builder) -> None:
    """Repeat copies along each axis; more counts than axes add axes in front."""
    x = call.tensor("self")
    attributes, host = call.extents("repeats", "repeats")
    given = call.argument("repeats")
    missing = (len(given) if isinstance(given, list) else 1) - call.rank()
    if missing:
        x = to.emit("braid.unsqueeze", [x], axes=list(range(missing)))
    to.emit("braid.tile", [x], call.output, host=host, **attributes)


@lowers("aten.cat.default", "aten.concat.default")
def cat(call: CallArguments, to: Builder) -> None:
    to.emit("aten.cat", call.tensors("tensors"), call.output, dim=call.integer("dim", 0))


@lowers("aten.stack.default")
def stack(call: CallArguments, to: Builder) -> None:
    axis = call.integer("dim", 0)
    parts = [to.emit("braid.unsqueeze", [part], axes=[axis]) for part in call.tensors("tensors")]
    to.emit("aten.cat", parts, call.output, dim=axis)


@lowers("aten.split.Tensor", "aten.chunk.default")
def split(call: CallArguments, to: Builder) -> None:
    """Cut into equal parts, the last one smaller if it must be."""
    axis, names = call.integer("dim", 0), call.outputs
    if call.target == "aten.chunk.default":
        call.integer("chunks")
        attributes: dict[str, Any] = {"parts": len(names)}
    else:
        extent, size = call.shape_of("self")[axis], call.integer("split_size")
        if not isinstance(extent, int):
            raise UnsupportedUse("split of an axis whose extent is open")
        sizes = [min(size, extent - i * size) for i in range(len(names))]
        attributes = {"sizes": sizes, "parts": len(names)}
    to.emit("braid.split", [call.tensor("self")], names, axis=axis, **attributes)


@lowers("aten.split_with_sizes.default", "aten.split.sizes")
def split_with_sizes(call: CallArguments, to: Builder) -> None:
    name = "split_size" if call.target == "aten.split.sizes" else "split_sizes"
    attributes, host = call.extents(name, "sizes")
    axis, names = call.integer("dim", 0), call.outputs
    operands = [call.tensor("self")]
    to.emit("braid.split", operands, names, host=host, axis=axis, parts=len(names), **attributes)


@lowers("aten.unbind.int")
def unbind(call: CallArguments, to: Builder) -> None:
    x, axis = call.tensor("self"), call.integer("dim", 0)
    for index, name in enumerate(call.outputs):
        to.emit("aten.select", [x], [name], dim=axis, index=index)


@lowers("aten.select.int")
def select(call: CallArguments, to: Builder) -> None:
    axis, index = call.integer("dim"), call.integer("index")
    to.emit("aten.select", [call.tensor("self")], call.output, dim=axis, index=index)


@lowers("aten.slice.Tensor", "aten.narrow.default")
def slice_(call: CallArguments, to: Builder) -> None:
    axis, step = call.integer("dim", 0), 1
    start: Any
    end: Any
    if call.target == "aten.narrow.default":
        start = call.integer("start")
        end = start + call.integer("length")
    else:
        start, end = call.argument("start"), call.argument("end")
        step = call.integer("step", 1)
    start, end = 0 if start is None else start, _FAR if end is None else end
    if (start, step) == (0, 1) and isinstance(end, int) and end >= _FAR:
        same(call, to)
        return
    attributes: dict[str, Any] = {"axes": [axis], "steps": [step]}
    host = {}
    for name, bound in (("starts", start), ("ends", end)):
        if isinstance(bound, Symbol):
            host[name] = call.vector([bound])
        elif isinstance(bound, int):
            attributes[name] = [bound]
        else:
            raise UnsupportedUse(f"{name} is not an integer")
    to.emit("braid.slice", [call.tensor("self")], call.output, host=host, **attributes)


@lowers("aten.flip.default")
def flip(call: CallArguments, to: Builder) -> None:
    axes = call.integers("dims")
    count = len(axes)
    to.emit(
        "braid.slice",
        [call.tensor("self")],
        call.output,
        starts=[-1] * count,
        ends=[-_FAR] * count,
        axes=axes,
        steps=[-1] * count,
    )


@lowers("aten.roll.default")
def roll(call: CallArguments, to: Builder) -> None:
    """Shift positions along axes; those moved over one end come in at the other."""
    shifts, axes = call.integers("shifts"), call.integers("dims", [])
    if len(shifts) != len(axes):
        raise UnsupportedUse("a roll over the flattened tensor")
    value = call.tensor("self")
    for place, (shift, axis) in enumerate(zip(shifts, axes, strict=True), start=1):
        extent = call.shape_of("self")[axis]
        if not isinstance(extent, int):
            raise UnsupportedUse("a roll along an axis whose extent is open")
        cut = -shift % max(extent, 1)
        parts = [
            to.emit("braid.slice", [value], starts=[a], ends=[b], axes=[axis], steps=[1])
            for a, b in ((cut, _FAR), (0, cut))
        ]
        value = to.emit("aten.cat", parts, call.output if place == len(axes) else ("",), dim=axis)


@lowers("aten.pad.default", "aten.constant_pad_nd.default")
def pad(call: CallArguments, to: Builder) -> None:
    """Pad or crop; amounts are listed from the last axis."""
    amounts, rank = call.integers("pad"), call.rank()
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    mode = call.text("mode", "constant")
    if mode not in modes or len(amounts) > 2 * rank or len(amounts) % 2:
        raise UnsupportedUse(f"mode={mode}, pad={amounts}")
    value = call.number("value", None)
    begins, ends = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        begins[rank - 1 - place], ends[rank - 1 - place] = amounts[2 * place : 2 * place + 2]
    to.emit(
        "braid.pad",
        [call.tensor("self")],
        call.output,
        pads=begins + ends,
        mode=modes[mode],
        value=float(value or 0.0),
    )


@lowers("aten.pixel_shuffle.default")
def pixel_shuffle(call: CallArguments, to: Builder) -> None:
    block = call.integer("upscale_factor")
    to.emit("braid.depth_to_space", [call.tensor("self")], call.output, block=block, mode="CRD")


@lowers("aten.pixel_unshuffle.default")
def pixel_unshuffle(call: CallArguments, to: Builder) -> None:
    block = call.integer("downscale_factor")
    to.emit("braid.space_to_depth", [call.tensor("self")], call.output, block=block, mode="CRD")


@lowers("aten.tril.default", "aten.triu.default")
def triangle(call: CallArguments, to: Builder) -> None:
    upper, k = call.target == "aten.triu.default", call.integer("diagonal", 0)
    to.emit("braid.trilu", [call.tensor("self")], call.output, upper=upper, k=k)


@lowers("aten.select_scatter.default")
def select_scatter(call: CallArguments, to: Builder) -> None:
    axis, index = call.axis("dim", call.rank()), call.integer("index")
    operands = [call.tensor("self"), to.emit("braid.unsqueeze", [call.tensor("src")], axes=[axis])]
    end = index + 1 if index != -1 else _FAR
    to.emit("braid.place", operands, call.output, axis=axis, start=index, end=end, step=1)


@lowers("aten.slice_scatter.default")
def slice_scatter(call: CallArguments, to: Builder) -> None:
    axis, step = call.axis("dim", call.rank(), 0), call.integer("step", 1)
    start, end = call.number("start", None), call.number("end", None)
    start, end = 0 if start is None else int(start), _FAR if end is None else int(end)
    operands = [call.tensor("self"), call.tensor("src")]
    to.emit("braid.place", operands, call.output, axis=axis, start=start, end=end, step=step)
