"""Rows of a model that ONNX Runtime runs whole, node by node.

    node ──lowered by itself──> Walk ──> facts of its results
      └──no lowering──> LEADING: kinds that are known to keep dimension 0 apart

ONNX Runtime tells the shapes of results of a node that has no lowering.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, inliner, numpy_helper
from torch import Tensor

from braid.core.errors import InvalidRequest
from braid.core.tensor import BYTES, TensorType
from braid.engine.importer.rows.facts import SAME, Fact, Rows, RowsMeet
from braid.engine.importer.rows.walk import BATCHES, Walk, batch_axes, checked, output_axis
from braid.engine.importer.verification.verify import OTHER_SCALES, Subject
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.onnx.tensors import DTYPES
from braid.engine.ops.dtypes import array_of, spec_of
from braid.engine.ops.session_run import run_session
from braid.engine.ops.whole import KIND, as_array, as_tensor, open_session
from braid.engine.passes.specialise import Trace, trace
from braid.engine.runtime.memory import raise_out_of_memory

_DOMAINS = {"ai.onnx": ""}  # two names of one
_ML, _CONTRIB, _NCHWC = "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"

LEADING: Mapping[tuple[str, str], tuple[int, ...]] = {
    (domain, kind): operands
    for domain, operands, kinds in (
        (
            _ML,
            (0,),
            "ArrayFeatureExtractor Binarizer CategoryMapper Imputer LabelEncoder LinearClassifier "
            "LinearRegressor Normalizer OneHotEncoder Scaler SVMClassifier SVMRegressor "
            "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor",
        ),
        (_ML, tuple(range(64)), "FeatureVectorizer"),
        ("", (0,), "AveragePool Conv Det GlobalLpPool LpPool RegexFullMatch TfIdfVectorizer"),
        ("", (0, 1), "StringConcat"),
        ("", (0, 1, 2), "TensorScatter"),
        ("", (0, 2, 4), "DeformConv"),
        (
            _CONTRIB,
            (0,),
            "FusedConv FusedGemm Gelu BiasGelu FastGelu QuickGelu MatMulNBits QLinearConv "
            "QLinearSoftmax QLinearLeakyRelu QLinearSigmoid QLinearAveragePool "
            "QLinearGlobalAveragePool NhwcMaxPool",
        ),
        (_CONTRIB, (0, 3), "QLinearAdd QLinearMul"),
        (_CONTRIB, (0, 1), "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
        (_CONTRIB, (0, 1, 7, 8), "EmbedLayerNormalization"),
        (_CONTRIB, (0, 3, 5), "Attention"),
        (_CONTRIB, (0, 1, 2, 4, 5, 6, 7), "MultiHeadAttention"),
        (_NCHWC, (0, 3), "Conv MaxPool AveragePool"),
        (_NCHWC, (0,), "GlobalMaxPool GlobalAveragePool ReorderInput ReorderOutput"),
    )
    for kind in kinds.split()
}
"""Operands of kinds without a lowering whose dimension 0 is the batch, as is that of results."""

_BY_ELEMENT = (
    *("Binarizer", "CategoryMapper", "LabelEncoder", "RegexFullMatch", "StringConcat"),
    *("Gelu", "FastGelu", "QuickGelu", "TensorScatter"),
)
_ELEMENT_TYPES = {name: number for number, name in DTYPES.items()} | {BYTES: TensorProto.STRING}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value in both batches."""

    fact: Fact
    specs: Sequence[TensorType]
    contents: Sequence[Tensor] = ()  # where they are known in advance


def batch_axes_of_whole(
    model: onnx.ModelProto, inputs: Sequence[Mapping[str, Tensor]]
) -> dict[str, int | None]:
    """Axis of the rows of each output; None for an output that is the same for all.

    ``inputs``: content that ``model``, with all its weights, takes; ``BATCHES`` tells their rows.
    Raises ``RowsMeet``, naming the node.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    names = [info.name for info in model.graph.output]
    given = {name: _Value(Rows(0), [spec_of(some[name]) for some in inputs]) for name in inputs[0]}
    walk = _Nodes(_Model(model, inputs), model.graph, given)
    return {name: output_axis(name, walk.fact(name)) for name in names}


class _Model:
    """A model with content that it takes, and what a run on it shows."""

    def __init__(self, proto: onnx.ModelProto, inputs: Sequence[Mapping[str, Tensor]]) -> None:
        self.proto = proto
        self._inputs = inputs
        self._shown: list[dict[str, TensorType]] = []

    def specs(self, name: str) -> list[TensorType]:
        """In both batches, by ONNX Runtime; ``RowsMeet`` in a loop, or if it does not run."""
        if not self._shown:
            self._shown = _shown(self.proto, self._inputs)
        if name not in self._shown[0]:
            raise RowsMeet("is part of a loop")
        return [specs[name] for specs in self._shown]


class _Nodes:
    """Values of a graph of a model."""

    def __init__(
        self,
        model: _Model,
        graph: GraphProto,
        given: Mapping[str, _Value | RowsMeet],
        constants: Mapping[str, TensorProto] = MappingProxyType({}),
    ) -> None:
        """``given``: values of inputs and outer graphs; ``constants``: of outer graphs."""
        self._model = model
        self._values = dict(given)
        own = {proto.name: proto for proto in graph.initializer}
        hidden = own.keys() | {info.name for info in graph.input}
        self._constants = {n: proto for n, proto in constants.items() if n not in hidden} | own
        for number, node in enumerate(graph.node):
            named = NodeProto()
            named.CopyFrom(node)
            named.name = node.name or f"{node.op_type}_{number}"
            self._take(named)

    def fact(self, name: str) -> Fact | RowsMeet:
        value = SAME if name in self._constants else self._values.get(name, _unknown(name))
        return value.fact if isinstance(value, _Value) else value

    def _take(self, node: NodeProto) -> None:
        try:
            given = (name for name in node.input if name and name not in self._constants)
            operands = {name: self._value(name) for name in given}
            special = _SPECIAL.get(_kind(node), _Nodes._known)
            self._values.update(self._lowered(node, operands) or special(self, node, operands))
        except RowsMeet as reason:
            if not reason.operator:
                reason = RowsMeet(str(reason), f"operator {node.name!r} ({node.op_type})")
            self._values.update(dict.fromkeys(node.output, reason))

    def _value(self, name: str) -> _Value:
        value = self._values.get(name, _unknown(name))
        if isinstance(value, RowsMeet):
            raise value
        return value

    def _alone(self, node: NodeProto, operands: Mapping[str, _Value]) -> onnx.ModelProto:
        """A model of one node; extents of its inputs are open."""
        infos = []
        for name, value in operands.items():
            shape = [f"{name}/{axis}" for axis in range(len(value.specs[0].shape))]
            element = _ELEMENT_TYPES[value.specs[0].dtype]
            infos.append(helper.make_tensor_value_info(name, element, shape))
        constants = [self._constants[name] for name in node.input if name in self._constants]
        given = list({proto.name: proto for proto in constants}.values())
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, outputs, given)
        model = helper.make_model(graph, opset_imports=self._model.proto.opset_import)
        model.ir_version = self._model.proto.ir_version
        return model

    def _lowered(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        try:
            template, weights = lower(prepare(self._alone(node, operands)))
            traces = [trace(template, weights, *_at(operands, at)) for at in (0, 1)]
        except Exception as error:  # a node may be malformed in many ways
            raise_out_of_memory(error)
            return {}
        facts = Walk({name: value.fact for name, value in operands.items()}, *traces).run()
        return {name: self._traced(name, fact, traces) for name, fact in facts.items()}

    def _traced(self, name: str, fact: Fact | RowsMeet, traces: Sequence[Trace]) -> Any:
        if isinstance(fact, RowsMeet):
            return fact
        values = [some.outputs[name] for some in traces]
        pairs = list(zip(traces, values, strict=True))
        is_known = not isinstance(fact, Rows) and all(v in some.contents for some, v in pairs)
        contents = [some.contents[value] for some, value in pairs] if is_known else []
        if contents and fact is SAME:
            self._constants[name] = numpy_helper.from_array(array_of(contents[0]), name)
        specs = [
            spec_of(some.contents[value]) if value in some.contents else some.specs[value]
            for some, value in pairs
        ]
        return _Value(fact, specs, contents)

    def _known(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        batched = LEADING.get(_kind(node))
        if batched is None:
            raise RowsMeet("is not known to keep rows apart")
        for place, name in enumerate(node.input):
            fact = operands[name].fact if name in operands else SAME
            if fact is not SAME and (fact != Rows(0) or place not in batched):
                raise RowsMeet("combines rows along different dimensions")
        ranks = [len(value.specs[0].shape) for value in operands.values()]
        if min(ranks, default=0) < 2 and node.op_type not in _BY_ELEMENT:
            raise RowsMeet("takes a list of rows for one row")
        return self._as_shown(node.output, [Rows(0)] * len(node.output))

    def _as_shown(self, names: Sequence[str], facts: Sequence[Fact]) -> dict[str, Any]:
        values = {}
        for name, fact in zip(names, facts, strict=True):
            if name:
                specs = self._model.specs(name)
                shapes = [tuple(int(extent) for extent in spec.shape) for spec in specs]
                values[name] = _Value(checked(fact, shapes), specs)
        return values

    def _picked(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        """Value of an ArrayFeatureExtractor: elements along the last axis at a list of places."""
        if node.input[0] in operands:
            return self._known(node, operands)
        places = self._value(node.input[1])
        if not isinstance(places.fact, Rows) or places.fact.has_place:
            raise RowsMeet("computes with the places of rows")
        fact, shape = places.fact, places.specs[0].shape
        before = math.prod(int(extent) for extent in shape[: fact.axis])
        behind = math.prod(int(extent) for extent in shape[fact.axis + 1 :])
        return self._as_shown(node.output[:1], [Rows(1, before * fact.outer, fact.inner * behind)])

    def _layer(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        """Values of a recurrent layer that has no lowering."""
        is_first = any(a.name == "layout" and a.i for a in node.attribute)
        rows = Rows(0 if is_first else 1)
        wanted = {0: rows, 4: Rows(0), 5: rows, 6: rows}  # sequences, lengths, first states
        for place, name in enumerate(node.input):
            if name in operands and operands[name].fact not in (SAME, wanted.get(place)):
                raise RowsMeet("combines rows along different dimensions")
        facts = [Rows(0 if is_first else 2), rows, rows]
        return self._as_shown(node.output, facts[: len(node.output)])

    def _looped(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        """Values of a Loop or Scan whose states keep their rows along one axis."""
        values = [operands.get(n) or self._constant(n) if n else None for n in node.input]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        body, is_loop = attributes.pop("body"), node.op_type == "Loop"
        scanned = 0 if is_loop else attributes.pop("num_scan_inputs")
        if attributes:
            raise RowsMeet(f"has the attribute {next(iter(attributes))}")
        states = values[2:] if is_loop else values[: len(values) - scanned]
        if is_loop and any(value and value.fact is not SAME for value in values[:2]):
            raise RowsMeet("runs as often as rows decide")
        first = [_Value(SAME, [TensorType(kind, ())] * 2) for kind in ("INT64", "BOOL")]
        slices = [_slice(value) for value in values[len(values) - scanned :] if value]
        given = [*(first if is_loop else []), *states, *slices]
        inside = dict(zip((info.name for info in body.input), given, strict=True))
        walk = _Nodes(self._model, body, {**self._values, **inside}, self._constants)
        results = [_sure(walk.fact(info.name)) for info in body.output]
        if is_loop and results.pop(0) is not SAME:
            raise RowsMeet("runs as often as rows decide")
        if any(s is None or s.fact != fact for s, fact in zip(states, results, strict=False)):
            raise RowsMeet("has a state whose rows do not stay along one axis")
        stacked = [_stacked(fact) for fact in results[len(states) :]]
        return self._as_shown(node.output, [*results[: len(states)], *stacked])

    def _constant(self, name: str) -> _Value:
        proto = self._constants[name]
        kind = DTYPES.get(proto.data_type, BYTES)
        return _Value(SAME, [TensorType(kind, tuple(proto.dims))] * 2)


_SPECIAL = {
    (_ML, "ArrayFeatureExtractor"): _Nodes._picked,
    **{("", kind): _Nodes._layer for kind in ("GRU", "LSTM", "RNN")},
    ("", "Loop"): _Nodes._looped,
    ("", "Scan"): _Nodes._looped,
}


def _slice(value: _Value) -> _Value:
    """The part of a scanned value that one step reads."""
    fact = value.fact
    if isinstance(fact, Rows):
        if fact.axis == 0 or fact.has_place:
            raise RowsMeet("works across the rows")
        fact = replace(fact, axis=fact.axis - 1)
    elif fact is not SAME:
        raise RowsMeet("computes with the number of rows")
    return _Value(fact, [TensorType(spec.dtype, spec.shape[1:]) for spec in value.specs])


def _stacked(fact: Fact) -> Fact:
    """The fact of the results of all steps, along a new first dimension."""
    if isinstance(fact, Rows) and not fact.has_place:
        return replace(fact, axis=fact.axis + 1)
    if fact is not SAME:
        raise RowsMeet("computes with the number of rows")
    return SAME


def _shown(
    model: onnx.ModelProto, batches: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, TensorType]]:
    """Specs of results of nodes known by kind, added to the outputs; ``RowsMeet`` if it fails."""
    known = [n for n in model.graph.node if _kind(n) in {*LEADING, *_SPECIAL}]
    names = [name for node in known for name in node.output if name]
    given = {info.name for info in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in given)
    try:
        session = open_session(model.SerializeToString(), 1)
        feeds = [{name: as_array(x) for name, x in inputs.items()} for inputs in batches]
        runs = [run_session(session, names, arrays) for arrays in feeds]
    except Exception as error:  # its exceptions share no base but this
        raise_out_of_memory(error)
        first = str(error).partition("\n")[0]
        raise RowsMeet(f"the model does not run on {BATCHES} rows: {first}") from error
    specs = [[spec_of(as_tensor(array)) for array in arrays] for arrays in runs]
    return [dict(zip(names, some, strict=True)) for some in specs]


def _kind(node: NodeProto) -> tuple[str, str]:
    return _DOMAINS.get(node.domain, node.domain), node.op_type


def _at(operands: Mapping[str, _Value], at: int) -> tuple[dict[str, TensorType], dict[str, Tensor]]:
    specs = {name: value.specs[at] for name, value in operands.items()}
    return specs, {name: value.contents[at] for name, value in operands.items() if value.contents}


def _sure(fact: Fact | RowsMeet) -> Fact:
    if isinstance(fact, RowsMeet):
        raise fact
    return fact


def _unknown(name: str) -> RowsMeet:
    return RowsMeet(f"{name!r} is computed after its reader, or not at all")


def show_rows_apart(subject: Subject) -> None:
    """Check by the graph of ``subject`` that no row of a batch depends on another one.

    An extent that a file leaves open may decide what a model does, so the walk is made again where
    all of them are larger.

    Raises ``RowsMeet``, naming the operator, or ``InvalidRequest`` if it does not run in a batch.
    """
    _walk(subject, subject.example.specs)
    symbols = subject.extents
    for scale in OTHER_SCALES if symbols and not subject.example.samples else ():
        extents = {symbol: extent * scale for symbol, extent in symbols.items()}
        with suppress(InvalidRequest):
            _walk(subject, subject.inputs_at(extents))
            break


def _walk(subject: Subject, specs: Mapping[str, TensorType]) -> None:
    if any(unit.kind == KIND for unit in subject.template.operators):
        (unit,) = subject.template.operators
        content = subject.weights[unit.inputs[0]].numpy().tobytes()
        example = replace(subject.example, specs=specs)
        drawn = [example.draw(rows, seed=0) for rows in BATCHES]
        batch_axes_of_whole(onnx.load_from_string(content), drawn)
    else:
        batch_axes(subject.template, subject.weights, specs)
