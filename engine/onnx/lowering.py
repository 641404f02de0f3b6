"""From an ONNX model to a template graph, node by node through the lowering table.

    ModelProto ──prepare──lower──> OpGraph (template) + constants
                             └── braid.engine.onnx.families: one function an operator

The model is untrusted. Nodes are put in order, names are checked, nesting is bounded; everything
that the table does not cover is collected over the whole model and named at once.
Asked by the importer, inside its sandbox.
"""

from collections.abc import Mapping

import onnx
from onnx import defs
from torch import Tensor

from braid.core.errors import InvalidArtefact, ModelImportError, UnsupportedOperators
from braid.core.graph import Branch, OpGraph
from braid.core.tensor import TensorType
from braid.engine.onnx.builder import Builder, UnsupportedUse
from braid.engine.onnx.families import TABLE
from braid.engine.onnx.lowering_table import (
    CONTRIBUTED,
    CONTRIBUTED_DOMAIN,
    NEWEST_OPSET,
    OLDEST_OPSET,
    Lower,
)
from braid.engine.onnx.node import OnnxNode
from braid.engine.onnx.node_order import in_order
from braid.engine.onnx.structure import DEFAULT_DOMAINS, check_nesting
from braid.engine.onnx.tensors import input_spec, to_tensor
from braid.engine.ops.dtypes import separated, spec_of
from braid.engine.ops.families.quantised_unit import DEQUANTISE, by_grid


def lower(model: onnx.ModelProto) -> tuple[OpGraph, dict[str, Tensor]]:
    """Return the template graph of a model, and its constants by value name.

    Raises:
        UnsupportedOperators: naming every use that the table does not cover.
        ModelImportError: the graph is cyclic or too deeply nested, defines a name twice or never,
            or has an initialiser that does not fill its shape.
    """
    return _Lowering(model).run()


class _Lowering:
    """State of the lowering of one model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        self._opset = opset_of(model)
        check_nesting(model.graph)
        self._builder = Builder()
        self._reasons: list[str] = []

    def run(self) -> tuple[OpGraph, dict[str, Tensor]]:
        inputs = self._inputs()
        outputs = self._body(self._graph, "")
        if self._reasons:
            raise UnsupportedOperators(tuple(self._reasons))
        return finish(self._builder, self._graph.name or "model", inputs, outputs)

    def _inputs(self) -> dict[str, TensorType]:
        """Specs of the inputs that a caller must give: those that no initialiser defines."""
        given = {proto.name for proto in self._graph.initializer}
        specs = {}
        for info in self._graph.input:
            if info.name in given:
                continue
            if self._builder.defined_here(info.name):
                raise ModelImportError(f"two inputs are named {info.name!r}")
            self._builder.define(info.name)
            try:
                specs[info.name] = input_spec(info)
            except UnsupportedUse as error:
                self._reasons.append(f"input {info.name!r}: {error}")
        return specs

    def _body(self, graph: onnx.GraphProto, path: str) -> dict[str, str]:
        """Lower one graph in the builder's innermost scope; return its outputs by ONNX name."""
        if graph.sparse_initializer:
            self._reasons.append(f"{path or 'the graph'} has sparse initialisers")
        for proto in graph.initializer:
            self._initialiser(proto, path)
        for node, label in in_order(graph, path, self._builder):
            self._node(node, label)
        outputs = {}
        for info in graph.output:
            value = self._builder.resolve(info.name)
            if value is None:
                raise ModelImportError(f"output {info.name!r} is never produced")
            if info.name in outputs:
                raise ModelImportError(f"two outputs are named {info.name!r}")
            outputs[info.name] = value
        if not outputs:
            raise ModelImportError(f"{path or 'the graph'} has no outputs")
        return outputs

    def _initialiser(self, proto: onnx.TensorProto, path: str) -> None:
        if not proto.name:
            raise ModelImportError("an initialiser has no name")
        if self._builder.defined_here(proto.name):
            raise ModelImportError(f"the name {proto.name!r} is defined twice")
        try:
            self._builder.define_constant(proto.name, to_tensor(proto))
        except UnsupportedUse as error:
            self._reasons.append(f"initialiser {path + proto.name!r}: {error}")
            self._builder.define(proto.name)

    def _node(self, proto: onnx.NodeProto, label: str) -> None:
        """Lower one node; an unsupported use becomes a reason, and lowering goes on."""
        try:
            self._lower_node(proto, label)
        except UnsupportedUse as error:
            self._reasons.append(f"{proto.op_type} ({label}): {error}")
        for output in filter(None, proto.output):
            if not self._builder.defined_here(output):  # unsupported: let later nodes go on
                self._builder.define(output)

    def _lower_node(self, proto: onnx.NodeProto, label: str) -> None:
        if not any(proto.output):
            raise ModelImportError(f"node {label!r} ({proto.op_type}) has no outputs")
        is_contributed = proto.domain == CONTRIBUTED_DOMAIN and proto.op_type in CONTRIBUTED
        if proto.domain not in DEFAULT_DOMAINS and not is_contributed:
            raise UnsupportedUse(f"custom domain {proto.domain!r}")
        version = 1 if is_contributed else since_version(proto.op_type, self._opset)
        inputs = [(self._builder.resolve(name) or "") if name else "" for name in proto.input]
        node = OnnxNode(proto, label, inputs, version)
        self._builder.begin(label)
        if proto.op_type == "If":
            self._conditional(node)
        else:
            lower = CONTRIBUTED[proto.op_type] if is_contributed else _covered(proto, version)
            try:
                lower(node, self._builder)
            except ValueError as error:  # lists whose lengths do not fit together
                raise UnsupportedUse(f"malformed attributes: {error}") from error
        missed = node.unread()
        missed += [
            f"output {i}"
            for i, name in enumerate(proto.output)
            if name and not self._builder.defined_here(name)
        ]
        if missed:
            raise UnsupportedUse(f"{', '.join(missed)} not covered")

    def _conditional(self, node: OnnxNode) -> None:
        """Lower an If: one branch if the condition is a constant, both otherwise."""
        condition = node.operand(0)
        constant = self._builder.constant(condition)
        if constant is not None and constant.numel() != 1:
            raise UnsupportedUse("the condition is not a single value")
        arms = {"then": node.graph("then_branch"), "else": node.graph("else_branch")}
        if constant is not None:
            chosen_arm = "then" if constant.item() else "else"
            branch = self._branch(node, chosen_arm, arms[chosen_arm])
            self._builder.operators.extend(branch.operators)
            for name, value in zip(node.outputs, branch.outputs, strict=True):
                if name:
                    self._builder.alias(name, value)
        else:
            branches = tuple(self._branch(node, label, arm) for label, arm in arms.items())
            self._builder.emit_cond(condition, branches, node.outputs)

    def _branch(self, node: OnnxNode, label: str, arm: onnx.GraphProto) -> Branch:
        if len(arm.output) != len(node.outputs):
            raise ModelImportError(f"the branches of {node.name!r} return different counts")
        with self._builder.subgraph() as operators:
            outputs = self._body(arm, f"{node.name}/{label}/")
        return Branch(tuple(operators), tuple(outputs.values()))


def _covered(proto: onnx.NodeProto, version: int) -> Lower:
    """Raises ``UnsupportedUse`` if the table has no lowering for the node's form."""
    entry = TABLE.get(proto.op_type)
    if entry is None:
        raise UnsupportedUse("not in the table")
    if not entry.first <= version <= entry.last:
        raise UnsupportedUse(
            f"its form of opset {version} is not covered ({entry.first} to {entry.last})"
        )
    return entry.lower


def opset_of(model: onnx.ModelProto) -> int:
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    if not versions:
        raise ModelImportError("the model does not say which ONNX operator set it uses")
    newest = min(NEWEST_OPSET, defs.onnx_opset_version())
    if not OLDEST_OPSET <= versions[0] <= newest:
        raise ModelImportError(
            f"the model uses ONNX operator set {versions[0]}; "
            f"sets {OLDEST_OPSET} to {newest} are supported: export it again with one of these"
        )
    return int(versions[0])


def since_version(op_type: str, opset: int) -> int:
    """Operator set that introduced the form of an operator which ``opset`` uses."""
    try:
        return int(defs.get_schema(op_type, opset, "").since_version)
    except defs.SchemaError:
        raise UnsupportedUse(f"opset {opset} has no such operator") from None


def finish(
    builder: Builder, name: str, inputs: Mapping[str, TensorType], outputs: Mapping[str, str]
) -> tuple[OpGraph, dict[str, Tensor]]:
    """Finish a lowering: the template graph, and its constants, taken out of the builder."""
    leave_weights_in_integers(builder)
    read = {value for op in builder.operators for value in op.reads()} | set(outputs.values())
    sources = builder.sources()
    made = {*inputs, *(value for op in builder.operators for value in op.outputs)}
    constants = separated(builder.constants, read)
    graph = OpGraph(
        name=name,
        inputs=dict(inputs),
        outputs=dict(outputs),
        constants={value: spec_of(tensor) for value, tensor in constants.items()},
        operators=tuple(builder.operators),
        sources={value: names for value, names in sources.items() if value in made},
    )
    try:
        graph.verify()
    except InvalidArtefact as error:
        raise ModelImportError(f"the model does not lower to a valid graph: {error}") from error
    return graph, constants


_KINDS = frozenset({"aten.convolution", "aten.linear"})


def leave_weights_in_integers(builder: Builder) -> None:
    """Make constant weights of layers on quantised data dequantisations of their integers again.

    Lowering sees every weight in floats, so that it can look at shapes and transpose.

        x ─> Q ─> DQ ─> conv(x; FP32 weight)        x ─> Q ─> DQ ─> conv(x; DQ(INT8 weight))
    """
    dequantised = {op.outputs[0] for op in builder.operators if op.kind == DEQUANTISE}
    wanted = [
        op.inputs[1]
        for op in builder.operators
        if op.kind in _KINDS and op.inputs[0] in dequantised and op.inputs[1] in builder.quantised
    ]
    dequantisers = []
    for value in dict.fromkeys(wanted):
        integers = builder.quantised[value]
        del builder.constants[value]
        source = builder.add_constant(f"{value}/integers", integers.values)
        operands = (source, integers.scale, integers.zero)
        name = f"{value}/dequantise"
        dequantisers.append(by_grid(DEQUANTISE, name, operands, value, integers.axis))
    builder.operators[:0] = dequantisers
