"""Operators of the sets 1 to 6, written as those of set 7, the oldest of the lowering table.

Sets before 7 differ in how a node says what it does. Only the second operand of arithmetic, which
could begin at an axis of the first, wants more than the node: its rank, and that of the first.
onnx's own converter lacks a third of these operators, and wants every extent.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
    shape_inference,
)

from braid.core.errors import UnsupportedOperators
from braid.engine.onnx.lowering_table import OLDEST_OPSET
from braid.engine.onnx.structure import DEFAULT_DOMAINS, graphs_of, subgraphs
from braid.engine.runtime.memory import raise_out_of_memory

_BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"),
    "PRelu",  # whose slope belongs to the channels
)
_DROPPED = ("consumed_inputs", "is_test", "output_sequence")  # of training, or of memory

_PLACE = ("axis", "broadcast")  # of a second operand

_MOST_INPUTS = {"Split": 1, "Tile": 2}
"""Operators whose first forms had more inputs; as attributes, these must be constants."""

_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "Concat": {"axis": 1},
    "Selu": {"alpha": 1.6732, "gamma": 1.0507},
}
"""Attributes with other defaults, or none, in newer sets; Selu's are of set 1."""


def is_old(model: ModelProto) -> bool:
    stated = [opset.version for opset in model.opset_import if opset.domain in DEFAULT_DOMAINS]
    return bool(stated) and stated[0] < OLDEST_OPSET


def raised(model: ModelProto) -> ModelProto:
    """Return an old model in the oldest set of the lowering table; the given one is not changed.

    Raises ``UnsupportedOperators``, naming the nodes that cannot be written in that set.
    """
    made = ModelProto()
    made.CopyFrom(model)
    opset = next(one for one in made.opset_import if one.domain in DEFAULT_DOMAINS)
    raising = _Raising(opset.version)
    opset.version = OLDEST_OPSET
    if made.functions:
        raising.refuse("local functions")
    raising.spell(made.graph)
    if raising.has_axes:
        raising.place(made.graph, _ranks(made))
    if raising.reasons:
        raise UnsupportedOperators(tuple(raising.reasons))
    return made


class _Raising:
    def __init__(self, version: int) -> None:
        self.reasons: list[str] = []
        self.has_axes = False
        self._version = version

    def refuse(self, what: str) -> None:
        self.reasons.append(
            f"{what} of operator set {self._version} cannot be raised to set {OLDEST_OPSET}; "
            "export the model again with a newer set, such as opset_version=17"
        )

    def spell(self, graph: GraphProto) -> None:
        """Say in the newer way what each node says, except for the axes of operands."""
        nodes: list[NodeProto] = []
        for node in graph.node:
            for inner in subgraphs(node):
                self.spell(inner)
            if node.domain in DEFAULT_DOMAINS:
                nodes += self._spelled(node)
            nodes.append(node)
        _replace(graph, nodes)

    def _spelled(self, node: NodeProto) -> Iterator[NodeProto]:
        """Change a node; yields one that it is to follow."""
        kind, given = node.op_type, {one.name: one for one in node.attribute}
        if len(node.input) > _MOST_INPUTS.get(kind, len(node.input)):
            self.refuse(f"{kind} ({node.name}) with {len(node.input)} inputs")
        has_axis = _axis(node) is not None  # its attributes are for ``place``
        self.has_axes |= has_axis
        is_placed = kind in (*_BROADCAST, "Gemm") and not has_axis
        dropped = (*_DROPPED, *(_PLACE if is_placed else ()))
        kept = [one for name, one in given.items() if name not in dropped]
        if kind == "Reshape" and "shape" in given:
            shape = numpy_helper.from_array(np.array(given["shape"].ints, np.int64))
            name = _beside(node, "shape")
            yield helper.make_node("Constant", [], [name], value=shape)
            node.input.append(name)
            kept.remove(given["shape"])
        elif kind == "Pad" and "paddings" in given:
            given["paddings"].name = "pads"
        elif kind == "Cast" and given.get("to", AttributeProto()).s:
            name = given["to"].s.decode(errors="replace").upper()
            types: dict[str, int] = dict(TensorProto.DataType.items())
            kept = [helper.make_attribute("to", types.get(name, 0))]
        elif kind in ("LpPool", "GlobalLpPool") and given.get("p", AttributeProto()).f:
            kept = [one for one in kept if one.name != "p"]
            kept.append(helper.make_attribute("p", round(given["p"].f)))
        elif kind == "Upsample" and "scales" not in given:
            scales = [
                1.0,
                1.0,
                *(given[n].f for n in ("height_scale", "width_scale") if n in given),
            ]
            kept = [one for one in kept if not one.name.endswith("_scale")]
            kept.append(helper.make_attribute("scales", scales))
        kept += [
            helper.make_attribute(name, value)
            for name, value in _DEFAULTS.get(kind, {}).items()
            if name not in given and (kind != "Selu" or self._version < 6)
        ]
        copies = [AttributeProto.FromString(one.SerializeToString()) for one in kept]
        del node.attribute[:]
        node.attribute.extend(copies)

    def place(self, graph: GraphProto, ranks: Mapping[str, int]) -> None:
        """Give second operands that begin at an axis of the first the axes that follow them."""
        nodes = []
        for node in graph.node:
            for inner in subgraphs(node):
                self.place(inner, ranks)
            axis = _axis(node)
            if axis is not None and len(node.input) == 2:
                known = [ranks.get(name) for name in node.input]
                if (first := known[0]) is None or (second := known[1]) is None:
                    self.refuse(f"{node.op_type} ({node.name}) of operands of unknown rank")
                    continue
                following = first - axis % max(first, 1) - second
                if second and following > 0:
                    name, axes = _beside(node, "operand"), range(second, second + following)
                    longer = helper.make_node("Unsqueeze", node.input[1:], [name], axes=[*axes])
                    nodes.append(longer)
                    node.input[1] = name
                del node.attribute[:]
            nodes.append(node)
        _replace(graph, nodes)


def _beside(node: NodeProto, what: str) -> str:
    return f"{next(iter(node.output), '')}/{what}"


def _axis(node: NodeProto) -> int | None:
    """Return the axis of the first operand at which the second one begins; None: they end alike."""
    if node.op_type not in _BROADCAST or node.domain not in DEFAULT_DOMAINS:
        return None
    if node.op_type == "PRelu":
        return 1
    given = {one.name: one.i for one in node.attribute}
    return given.get("axis") if given.get("broadcast") else None


def _ranks(model: ModelProto) -> dict[str, int]:
    """Infer ranks of values; a result of arithmetic is like its first operand."""
    bare = ModelProto()
    bare.CopyFrom(model)
    for output in bare.graph.output:
        output.ClearField("type")
    for graph in graphs_of(bare):
        for node in graph.node:
            if _axis(node) is not None:
                node.op_type = "Identity"
                del node.input[1:]
                del node.attribute[:]
    try:
        inferred = shape_inference.infer_shapes(bare, data_prop=True)
    except Exception as error:  # whatever its C++ throws: what is declared is known
        raise_out_of_memory(error)
        inferred = bare
    ranks = {}
    for graph in graphs_of(inferred):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.HasField("shape"):
                ranks[value.name] = len(value.type.tensor_type.shape.dim)
        ranks |= {constant.name: len(constant.dims) for constant in graph.initializer}
    return ranks


def _replace(graph: GraphProto, nodes: list[NodeProto]) -> None:
    copies = GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(copies.node)
