"""Lowering of operators that make, move, view, join, cut, pick and place elements."""

from typing import Any

import torch

from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.lowering_table import Maybe, computed_since, lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name, to_tensor
from braid.engine.ops.dtypes import DTYPE_NAMES

_REDUCTIONS = ("none", "add", "mul", "max", "min")

lowers_to("braid.size", "Size", 1, 25)
lowers_to("braid.shape", "Shape", 1, 25, start=("start", 0), end=("end", None))
lowers_to("braid.flatten", "Flatten", 1, 25, axis=("axis", 1))
lowers_to("aten.permute", "Transpose", 1, 25, dims=("perm", []))
lowers_to("aten.cat", "Concat", 4, 13, None, dim=("axis", int))
lowers_to(
    *("braid.reshape", "Reshape", 5, 25),
    host={"shape": 1},
    remarks="the shape may be computed",
    allow_zero=("allowzero", False),
)
lowers_to("braid.expand", "Expand", 8, 13, 1, {"shape": 1}, remarks="the shape may be computed")
lowers_to("braid.tile", "Tile", 6, 13, 1, {"repeats": 1}, remarks="repeats may be computed")
lowers_to("braid.trilu", "Trilu", 14, 14, 1, {"k": Maybe(1)}, upper=("upper", True))
lowers_to("braid.one_hot", "OneHot", 9, 28, (0, 2), {"depth": 1}, axis=("axis", -1))
lowers_to("braid.nonzero", "NonZero", 9, 13, remarks="only of constants and shapes")
lowers_to(
    *("braid.compress", "Compress", 9, 28, 1, {"condition": 1}),
    remarks="only by a constant condition",
    axis=("axis", None),
)
lowers_to("braid.gather_elements", "GatherElements", 11, 13, 2, axis=("axis", 0))
lowers_to("braid.gather_nd", "GatherND", 11, 13, 2, batch_dims=("batch_dims", 0))
for _name, _first, _last in (("Scatter", 9, 9), ("ScatterElements", 11, 18)):
    lowers_to(
        *("braid.scatter_elements", _name, _first, _last, 3),
        axis=("axis", 0),
        reduction=("reduction", _REDUCTIONS),
    )
lowers_to("braid.scatter_nd", "ScatterND", 11, 18, 3, reduction=("reduction", _REDUCTIONS))
lowers_to(
    *("braid.reverse_sequence", "ReverseSequence", 10, 28, 2),
    batch_axis=("batch_axis", 1),
    time_axis=("time_axis", 0),
)
for _kind, _name in (
    ("braid.depth_to_space", "DepthToSpace"),
    ("braid.space_to_depth", "SpaceToDepth"),
):
    lowers_to(_kind, _name, 1, 28, block=("blocksize", int), mode=("mode", ("DCR", "CRD")))


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


@lowers("Squeeze", 1, 25, "axes may be computed")
def squeeze(node: OnnxNode, to: Builder) -> None:
    host, attributes = computed_since(node, 13, Maybe(1), axes=("axes", []))
    to.emit("braid.squeeze", [node.operand(0)], node.output, host=host, **attributes)


@lowers("Unsqueeze", 1, 25, "axes may be computed")
def unsqueeze(node: OnnxNode, to: Builder) -> None:
    host, attributes = computed_since(node, 13, Maybe(1), axes=("axes", []))
    if not (attributes or host.get("axes")):
        raise UnsupportedUse("axes are missing")
    to.emit("braid.unsqueeze", [node.operand(0)], node.output, host=host, **attributes)


@lowers("Split", 2, 18, "sizes may be computed")
def split(node: OnnxNode, to: Builder) -> None:
    host, attributes = computed_since(node, 13, Maybe(1), sizes=("split", []))
    attributes |= {"axis": node.integer("axis", 0), "parts": len(node.outputs)}
    node.require("num_outputs", len(node.outputs))
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
