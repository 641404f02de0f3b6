"""Rules: a pattern of nodes becomes one node of the domain ``braid``.

A rule is an ONNX function. Its body is the pattern that is looked for, and the meaning of the node
that takes its place: so the model stays one that any runtime can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import onnx
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, helper, parser

DOMAIN, OPSET = "braid", 20

_WINDOW = "dilations, group, kernel_shape, pads, strides"
_CONV = (
    "c = Conv <dilations: ints = @dilations, group: int = @group, kernel_shape: ints = "
    "@kernel_shape, pads: ints = @pads, strides: ints = @strides>"
)
_HEADS = "Transpose <perm = [0, 2, 1, 3]>"
_RESHAPE = "Reshape <allowzero: int = @allowzero>"
_GELU = "Gelu <approximate: string = @approximate>"
SOURCES = (
    f"ConcatConvRelu <{_WINDOW}> (a, b, w, bias) => (y) "
    f"{{ x = Concat <axis = 1> (a, b) {_CONV} (x, w, bias) y = Relu (c) }}",
    f"ConvRelu <{_WINDOW}> (x, w, bias) => (y) {{ {_CONV} (x, w, bias) y = Relu (c) }}",
    f"""Attention (q, k, v, q_split, k_split, v_split, scale, mask, merge) => (y) {{
        q4 = {_RESHAPE} (q, q_split) qh = {_HEADS} (q4)
        k4 = {_RESHAPE} (k, k_split) kt = Transpose <perm = [0, 2, 3, 1]> (k4)
        v4 = {_RESHAPE} (v, v_split) vh = {_HEADS} (v4)
        products = MatMul (qh, kt) scaled = Mul (products, scale) masked = Add (scaled, mask)
        odds = Softmax <axis = -1> (masked) mixed = MatMul (odds, vh)
        joined = {_HEADS} (mixed) y = {_RESHAPE} (joined, merge) }}""",
    "LinearGelu <approximate> (x, w, bias) => (y) "
    f"{{ m = MatMul (x, w) s = Add (m, bias) y = {_GELU} (s) }}",
    "LinearAdd (x, w, bias, r) => (y) { m = MatMul (x, w) s = Add (m, bias) y = Add (s, r) }",
    "Linear (x, w, bias) => (y) { m = MatMul (x, w) y = Add (m, bias) }",
)
_COMMUTATIVE = frozenset({"Add", "Mul"})


@cache
def rules() -> tuple[FunctionProto, ...]:
    """All rules; the first one that fits wins."""
    head = f'<opset_import: ["" : {OPSET}], domain: "{DOMAIN}"> '
    return tuple(parser.parse_function(head + source) for source in SOURCES)


@dataclass(slots=True)
class _Found:
    """Names of a function bound to values of the graph, its attributes, and the nodes taken."""

    names: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, AttributeProto] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)

    def copy(self) -> _Found:
        return _Found(dict(self.names), dict(self.attributes), list(self.nodes))


class _Graph:
    """Nodes by what they make; values that one node reads, and nobody else."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.maker = {out: at for at, node in enumerate(self.nodes) for out in node.output if out}
        reads = Counter(name for node in self.nodes for name in node.input)
        reads.update(output.name for output in model.graph.output)
        self.inner = {name for name, count in reads.items() if count == 1}
        self.outputs = {output.name for output in model.graph.output}


def matched(function: FunctionProto, at: int, graph: _Graph) -> _Found | None:
    """The function's body, found upstream of node ``at``; None if it is not there."""
    makers = {out: node for node in function.node for out in node.output}

    def value(pattern: str, name: str, found: _Found) -> Iterator[_Found]:
        if pattern in found.names:
            if found.names[pattern] == name:
                yield found
        elif pattern not in makers:
            found.names[pattern] = name
            yield found
        elif name in graph.maker and name in graph.inner - graph.outputs:
            found.names[pattern] = name
            yield from node(makers[pattern], graph.maker[name], found)

    def node(pattern: NodeProto, number: int, found: _Found) -> Iterator[_Found]:
        given = graph.nodes[number]
        if (given.op_type, given.domain) != (pattern.op_type, pattern.domain):
            return
        if len(given.input) != len(pattern.input) or not _fit(pattern, given, found):
            return
        found.nodes.append(number)
        orders = [list(given.input)]
        if given.op_type in _COMMUTATIVE:
            orders.append(orders[0][::-1])
        for order in orders:
            yield from values(list(zip(pattern.input, order, strict=True)), found.copy())

    def values(pairs: Sequence[tuple[str, str]], found: _Found) -> Iterator[_Found]:
        if not pairs:
            yield found
            return
        for one in value(*pairs[0], found):
            yield from values(pairs[1:], one.copy())

    (root,) = (node for node in function.node if function.output[0] in node.output)
    start = _Found({function.output[0]: graph.nodes[at].output[0]})
    return next(node(root, at, start), None)


def _fit(pattern: NodeProto, given: NodeProto, found: _Found) -> bool:
    """Whether attributes are those of the pattern; notes those that it leaves to the caller."""
    wanted = {attribute.name: attribute for attribute in pattern.attribute}
    for attribute in given.attribute:
        asked = wanted.pop(attribute.name, None)
        if asked is None:
            if helper.get_attribute_value(attribute) != _default(given, attribute.name):
                return False
            continue
        if asked.ref_attr_name:
            other = found.attributes.setdefault(asked.ref_attr_name, attribute)
            if helper.get_attribute_value(other) != helper.get_attribute_value(attribute):
                return False
        elif helper.get_attribute_value(asked) != helper.get_attribute_value(attribute):
            return False
    return all(
        asked.ref_attr_name or helper.get_attribute_value(asked) == _default(given, name)
        for name, asked in wanted.items()
    )


@cache
def _defaults(domain: str, operator: str) -> Mapping[str, object]:
    if domain:
        return {}
    declared = onnx.defs.get_schema(operator, OPSET).attributes
    return {
        name: helper.get_attribute_value(one.default_value)
        for name, one in declared.items()
        if one.default_value.name
    }


def _default(node: NodeProto, attribute: str) -> object:
    """What an attribute is where a node has none, as ONNX Runtime writes it out."""
    return _defaults(node.domain, node.op_type).get(attribute)


def fused(model: ModelProto, names: Sequence[str] | None = None) -> ModelProto:
    """The model with the rules applied, and the functions that its new nodes mean."""
    for function in rules():
        if names is not None and function.name not in names:
            continue
        graph, taken, made = _Graph(model), set[int](), dict[int, NodeProto]()
        for at in range(len(graph.nodes)):
            found = matched(function, at, graph)
            if found is None or taken.intersection(found.nodes):
                continue
            taken.update(found.nodes)
            made[at] = _call(function, found)
        if made:
            nodes = [
                made.get(at, node)
                for at, node in enumerate(graph.nodes)
                if at in made or at not in taken
            ]
            del model.graph.node[:]
            model.graph.node.extend(nodes)
            model.functions.append(function)
    if model.functions:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def _call(function: FunctionProto, found: _Found) -> NodeProto:
    inputs = [found.names[name] for name in function.input]
    output = found.names[function.output[0]]
    node = helper.make_node(
        function.name, inputs, [output], domain=DOMAIN, name=f"{function.name}:{output}"
    )
    for name, attribute in found.attributes.items():
        copy = onnx.AttributeProto()
        copy.CopyFrom(attribute)
        copy.name = name
        node.attribute.append(copy)
    return node


def attributes_of(node: NodeProto) -> Mapping[str, object]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}
