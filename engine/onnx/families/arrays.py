"""Lowering of operators that make, move, view, join, cut, pick and place elements."""

from __future__ import annotations

from typing import Any

import torch

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name, to_tensor
from braid.engine.ops.dtypes import DTYPE_NAMES

lowers_to("braid.size", "Size", 1, 25)
lowers_to("braid.flatten", "Flatten", 1, 25, axis=("axis", 1))
lowers_to("braid.gather_elements", "GatherElements", 11, 13, operands=2, axis=("axis", 0))
lowers_to("braid.gather_nd", "GatherND", 11, 13, operands=2, batch_dims=("batch_dims", 0))
lowers_to(
    *("braid.reverse_sequence", "ReverseSequence", 10, 28, 2),
    batch_axis=("batch_axis", 1),
    time_axis=("time_axis", 0),
)


@lowers("Constant", 1, 25, "no strings, no sparse tensors")
def constant(node: OnnxNode, to: Builder) -> None:
    to.define_constant(node.outputs[0], _content(node))


def _content(node: OnnxNode) -> torch.Tensor:
    proto = node.tensor("value")
    if proto is not None:
        return to_tensor(proto)
    if node.has("value_float"):
        return torch.tensor(node.real("value_float"), dtype=torch.float32)
    if node.has("value_int"):
        return torch.tensor(node.integer("value_int"), dtype=torch.int64)
    reals, integers = node.reals("value_floats"), node.integers("value_ints")
    if reals is not None:
        return torch.tensor(reals, dtype=torch.float32)
    if integers is not None:
        return torch.tensor(integers, dtype=torch.int64)
    raise UnsupportedUse("a constant that is not a plain tensor")


@lowers("ConstantOfShape", 9, 25)
def constant_of_shape(node: OnnxNode, to: Builder) -> None:
    proto = node.tensor("value")
    value = to_tensor(proto) if proto is not None else torch.zeros(1)
    if value.numel() != 1:
        raise UnsupportedUse(f"a fill value of {value.numel()} elements")
    to.emit(
        "braid.constant_of_shape",
        [],
        node.output,
        host={"shape": node.operand(0)},
        value=value.item(),
        dtype=DTYPE_NAMES[value.dtype],
    )


@lowers("Range", 11, 27, "bounds may be computed")
def range_(node: OnnxNode, to: Builder) -> None:
    node.without_effect("stash_type")  # steps are computed in FP64
    bounds = {name: node.operand(i) for i, name in enumerate(("start", "limit", "delta"))}
    to.emit("braid.range", [bounds["start"]], node.output, host=bounds)


@lowers("EyeLike", 9, 22)
def eye_like(node: OnnxNode, to: Builder) -> None:
    dtype = dtype_name(node.integer("dtype")) if node.has("dtype") else None
    to.emit("braid.eye_like", [node.operand(0)], node.output, k=node.integer("k", 0), dtype=dtype)


@lowers("Shape", 1, 25)
def shape(node: OnnxNode, to: Builder) -> None:
    end = node.integer("end") if node.has("end") else None
    start = node.integer("start", 0)
    to.emit("braid.shape", [node.operand(0)], node.output, start=start, end=end)


@lowers("Gather", 1, 13)
def gather(node: OnnxNode, to: Builder) -> None:
    """Pick slices by index; by one constant index, a view."""
    x, indices, axis = node.operand(0), node.operand(1), node.integer("axis", 0)
    content = to.constant(indices)
    if content is not None and content.dim() == 0:
        to.emit("aten.select", [x], node.output, dim=axis, index=int(content.item()))
        return
    wrap = content is None or bool(content.numel() and (content < 0).any())
    to.emit("braid.gather", [x, indices], node.output, axis=axis, wrap=wrap)


_REDUCTIONS = ("none", "add", "mul", "max", "min")


def _scatter_elements(node: OnnxNode, to: Builder) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    operands = [node.operand(i) for i in range(3)]
    axis = node.integer("axis", 0)
    to.emit("braid.scatter_elements", operands, node.output, axis=axis, reduction=reduction)


lowers("Scatter", 9, 9)(_scatter_elements)
lowers("ScatterElements", 11, 18)(_scatter_elements)


@lowers("ScatterND", 11, 18)
def scatter_nd(node: OnnxNode, to: Builder) -> None:
    reduction = node.choice("reduction", "none", _REDUCTIONS)
    operands = [node.operand(i) for i in range(3)]
    to.emit("braid.scatter_nd", operands, node.output, reduction=reduction)


@lowers("OneHot", 9, 28)
def one_hot(node: OnnxNode, to: Builder) -> None:
    operands, host = [node.operand(0), node.operand(2)], {"depth": node.operand(1)}
    axis = node.integer("axis", -1)
    to.emit("braid.one_hot", operands, node.output, host=host, axis=axis)


@lowers("NonZero", 9, 13, "only of constants and shapes")
def non_zero(node: OnnxNode, to: Builder) -> None:
    """Positions of non-zero elements; only of values known at specialisation."""
    to.emit("braid.nonzero", [node.operand(0)], node.output)


@lowers("Compress", 9, 28, "only by a constant condition")
def compress(node: OnnxNode, to: Builder) -> None:
    axis = node.integer("axis") if node.has("axis") else None
    host = {"condition": node.operand(1)}
    to.emit("braid.compress", [node.operand(0)], node.output, host=host, axis=axis)


@lowers("Reshape", 5, 25, "the shape may be computed")
def reshape(node: OnnxNode, to: Builder) -> None:
    allow_zero = node.flag("allowzero")
    host = {"shape": node.operand(1)}
    to.emit("braid.reshape", [node.operand(0)], node.output, host=host, allow_zero=allow_zero)


@lowers("Transpose", 1, 25)
def transpose(node: OnnxNode, to: Builder) -> None:
    to.emit("aten.permute", [node.operand(0)], node.output, dims=node.integers("perm"))


def _axes(node: OnnxNode, operand_from: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Axes as an attribute before ``operand_from``, as operand 1 since: (host, attributes)."""
    if node.version < operand_from:
        axes = node.integers("axes")
        return {}, {} if axes is None else {"axes": axes}
    return {"axes": node.maybe(1)}, {}


@lowers("Squeeze", 1, 25, "axes may be computed")
def squeeze(node: OnnxNode, to: Builder) -> None:
    host, attributes = _axes(node, 13)
    to.emit("braid.squeeze", [node.operand(0)], node.output, host=host, **attributes)


@lowers("Unsqueeze", 1, 25, "axes may be computed")
def unsqueeze(node: OnnxNode, to: Builder) -> None:
    host, attributes = _axes(node, 13)
    if not (attributes or host.get("axes")):
        raise UnsupportedUse("axes are missing")
    to.emit("braid.unsqueeze", [node.operand(0)], node.output, host=host, **attributes)


@lowers("Concat", 4, 13)
def concat(node: OnnxNode, to: Builder) -> None:
    to.emit("aten.cat", node.all_operands(), node.output, dim=node.integer("axis"))


@lowers("Split", 2, 18, "sizes may be computed")
def split(node: OnnxNode, to: Builder) -> None:
    host: dict[str, str] = {}
    parts = len(node.outputs)
    attributes: dict[str, Any] = {"axis": node.integer("axis", 0), "parts": parts}
    node.require("num_outputs", parts)
    if node.version < 13:
        attributes["sizes"] = node.integers("split")
    elif node.maybe(1):
        host["sizes"] = node.operand(1)
    to.emit("braid.split", [node.operand(0)], node.outputs, host=host, **attributes)


@lowers("Slice", 1, 13, "bounds may be computed")
def slice_(node: OnnxNode, to: Builder) -> None:
    if node.version < 10:
        bounds: dict[str, Any] = {name: node.integers(name) for name in ("starts", "ends", "axes")}
        if bounds["starts"] is None or bounds["ends"] is None:
            raise UnsupportedUse("starts and ends are missing")
        to.emit("braid.slice", [node.operand(0)], node.output, **bounds)
        return
    host = {"starts": node.operand(1), "ends": node.operand(2)}
    host |= {"axes": node.maybe(3), "steps": node.maybe(4)}
    to.emit("braid.slice", [node.operand(0)], node.output, host=host)


@lowers("Expand", 8, 13, "the shape may be computed")
def expand(node: OnnxNode, to: Builder) -> None:
    to.emit("braid.expand", [node.operand(0)], node.output, host={"shape": node.operand(1)})


@lowers("Tile", 6, 13, "repeats may be computed")
def tile(node: OnnxNode, to: Builder) -> None:
    to.emit("braid.tile", [node.operand(0)], node.output, host={"repeats": node.operand(1)})


@lowers("Pad", 2, 25, "all modes; amounts may be computed")
def pad(node: OnnxNode, to: Builder) -> None:
    modes = ("constant", "reflect", "edge") + (("wrap",) if node.version >= 19 else ())
    attributes: dict[str, Any] = {"mode": node.choice("mode", "constant", modes)}
    host: dict[str, str] = {}
    if node.version < 11:
        attributes["pads"] = node.integers("pads")
        attributes["value"] = node.real("value", 0.0)
    else:
        host = {"pads": node.operand(1), "value": node.maybe(2)}
        if node.version >= 18:
            host["axes"] = node.maybe(3)
    to.emit("braid.pad", [node.operand(0)], node.output, host=host, **attributes)


@lowers("DepthToSpace", 1, 28)
def depth_to_space(node: OnnxNode, to: Builder) -> None:
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    block = node.integer("blocksize")
    to.emit("braid.depth_to_space", [node.operand(0)], node.output, block=block, mode=mode)


@lowers("SpaceToDepth", 1, 28)
def space_to_depth(node: OnnxNode, to: Builder) -> None:
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    block = node.integer("blocksize")
    to.emit("braid.space_to_depth", [node.operand(0)], node.output, block=block, mode=mode)


@lowers("Trilu", 14, 14)
def trilu(node: OnnxNode, to: Builder) -> None:
    host = {"k": node.maybe(1)}
    upper = node.flag("upper", True)
    to.emit("braid.trilu", [node.operand(0)], node.output, host=host, upper=upper)
