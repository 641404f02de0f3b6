"""Lowering of operators that move, view, join and cut."""

from __future__ import annotations

from typing import Any

from braid.engine.lowering.builder import Builder
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.lowering_table import lowers
from braid.engine.onnx.node import OnnxNode


@lowers("Reshape", 5, 25, "the shape may be computed")
def reshape(node: OnnxNode, to: Builder) -> None:
    allow_zero = node.flag("allowzero")
    host = {"shape": node.operand(1)}
    to.emit("braid.reshape", [node.operand(0)], node.output, host=host, allow_zero=allow_zero)


@lowers("Flatten", 1, 25)
def flatten(node: OnnxNode, to: Builder) -> None:
    to.emit("braid.flatten", [node.operand(0)], node.output, axis=node.integer("axis", 1))


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


@lowers("ReverseSequence", 10, 28)
def reverse_sequence(node: OnnxNode, to: Builder) -> None:
    to.emit(
        "braid.reverse_sequence",
        [node.operand(0), node.operand(1)],
        node.output,
        batch_axis=node.integer("batch_axis", 1),
        time_axis=node.integer("time_axis", 0),
    )
