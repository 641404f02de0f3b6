"""Lowering of constants and of tensors made from shapes."""

from __future__ import annotations

import torch

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.lowering_table import lowers, lowers_to
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.tensors import dtype_name, to_tensor
from braid.engine.ops.dtypes import DTYPE_NAMES

lowers_to("braid.size", "Size", 1, 25)


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
