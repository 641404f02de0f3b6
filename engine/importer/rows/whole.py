"""Rows of a model that ONNX Runtime runs whole, node by node.

    node ──lowered by itself──> Walk ──> facts of its results
      └──no lowering──> LEADING: kinds that are known to keep dimension 0 apart

ONNX Runtime tells the shapes of results of a node that has no lowering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper, inliner, numpy_helper
from torch import Tensor

from braid.core.tensor import BYTES, TensorType
from braid.engine.importer.rows.facts import SAME, Fact, Rows, RowsMeet
from braid.engine.importer.rows.walk import BATCHES, Walk, output_axis
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.onnx.tensors import DTYPES
from braid.engine.ops.dtypes import array_of, spec_of
from braid.engine.ops.session_run import run_session
from braid.engine.ops.whole import as_array, as_tensor, open_session
from braid.engine.passes.specialise import Trace, trace
from braid.engine.runtime.memory import raise_out_of_memory

_DOMAINS = {"ai.onnx": ""}  # two names of one
_ML, _CONTRIB = "ai.onnx.ml", "com.microsoft"

LEADING: Mapping[tuple[str, str], tuple[int, ...]] = {
    **{
        (_ML, kind): (0,)
        for kind in (
            *("ArrayFeatureExtractor", "Binarizer", "CategoryMapper", "Imputer", "LabelEncoder"),
            *("LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder", "Scaler"),
            *("SVMClassifier", "SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier"),
            *("TreeEnsembleRegressor",),
        )
    },
    (_ML, "FeatureVectorizer"): tuple(range(64)),
    ("", "RegexFullMatch"): (0,),
    ("", "StringConcat"): (0, 1),
    ("", "TfIdfVectorizer"): (0,),
    **{
        (_CONTRIB, kind): (0,)
        for kind in (
            *("FusedConv", "FusedGemm", "Gelu", "BiasGelu", "FastGelu", "QuickGelu"),
            *("MatMulNBits", "QLinearConv", "QLinearSoftmax", "QLinearLeakyRelu"),
            *("QLinearSigmoid", "QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"),
        )
    },
    (_CONTRIB, "QLinearAdd"): (0, 3),
    (_CONTRIB, "QLinearMul"): (0, 3),
    (_CONTRIB, "SkipLayerNormalization"): (0, 1),
    (_CONTRIB, "SkipSimplifiedLayerNormalization"): (0, 1),
    (_CONTRIB, "EmbedLayerNormalization"): (0, 1, 7, 8),
    (_CONTRIB, "Attention"): (0, 3, 5),
    (_CONTRIB, "MultiHeadAttention"): (0, 1, 2, 4, 5, 6, 7),
    **{("com.microsoft.nchwc", kind): (0, 3) for kind in ("Conv", "MaxPool", "AveragePool")},
    **{("com.microsoft.nchwc", kind): (0,) for kind in ("GlobalMaxPool", "GlobalAveragePool")},
    **{("com.microsoft.nchwc", kind): (0,) for kind in ("ReorderInput", "ReorderOutput")},
}
"""Operands of kinds without a lowering whose dimension 0 is the batch, as is that of results."""

_BY_ELEMENT = (
    *("Binarizer", "CategoryMapper", "LabelEncoder", "RegexFullMatch", "StringConcat"),
    *("Gelu", "FastGelu", "QuickGelu"),
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
    """Return the axis of the rows for each output; None for an output that is the same for all.

    Args:
        model: with all its weights.
        inputs: content that it takes, of as many rows as ``BATCHES`` says.

    Raises:
        RowsMeet: naming the node that may let rows influence each other.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    walk, names = _Nodes(model, inputs), [info.name for info in model.graph.output]
    for number, node in enumerate(model.graph.node):
        named = NodeProto()
        named.CopyFrom(node)
        named.name = node.name or f"{node.op_type}_{number}"
        walk.take(named)
    return {name: output_axis(name, walk.fact(name)) for name in names}


class _Nodes:
    """Values of a model, as far as its nodes were taken."""

    def __init__(self, model: onnx.ModelProto, inputs: Sequence[Mapping[str, Tensor]]) -> None:
        self._model, self._inputs = model, inputs
        self._shown: list[dict[str, TensorType]] = []
        self._constants = {proto.name: proto for proto in model.graph.initializer}
        self._values: dict[str, _Value | RowsMeet] = {
            name: _Value(Rows(0), [spec_of(some[name]) for some in inputs]) for name in inputs[0]
        }

    def fact(self, name: str) -> Fact | RowsMeet:
        value = SAME if name in self._constants else self._values.get(name, _unknown(name))
        return value.fact if isinstance(value, _Value) else value

    def take(self, node: NodeProto) -> None:
        """Find what holds of a node's results."""
        try:
            operands = {name: self._value(name) for name in node.input if self._is_value(name)}
            self._values.update(self._lowered(node, operands) or self._known(node, operands))
        except RowsMeet as reason:
            if not reason.operator:
                reason = RowsMeet(str(reason), f"operator {node.name!r} ({node.op_type})")
            self._values.update(dict.fromkeys(node.output, reason))

    def _is_value(self, name: str) -> bool:
        return bool(name) and name not in self._constants

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
        model = helper.make_model(graph, opset_imports=self._model.opset_import)
        model.ir_version = self._model.ir_version
        return model

    def _lowered(self, node: NodeProto, operands: Mapping[str, _Value]) -> dict[str, Any]:
        """Values of a node that has a lowering; nothing for any other."""
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
        """Values of a node that is known by its kind."""
        batched = LEADING.get(
            (
                node.domain.removeprefix("ai.onnx") if node.domain == "ai.onnx" else node.domain,
                node.op_type,
            )
        )
        if batched is None:
            raise RowsMeet("is not known to keep rows apart")
        for place, name in enumerate(node.input):
            fact = operands[name].fact if name in operands else SAME
            if fact is not SAME and (fact != Rows(0) or place not in batched):
                raise RowsMeet("combines rows along different dimensions")
        ranks = [len(value.specs[0].shape) for value in operands.values()]
        if min(ranks, default=0) < 2 and node.op_type not in _BY_ELEMENT:
            raise RowsMeet("takes a list of rows for one row")
        results = {name: self._specs(name) for name in node.output if name}
        return {name: _Value(_rows(*specs), specs) for name, specs in results.items()}

    def _specs(self, name: str) -> list[TensorType]:
        """Specs of a result in both batches, as ONNX Runtime gives them."""
        if not self._shown:
            self._shown = _shown(self._model, self._inputs)
        return [specs[name] for specs in self._shown]


def _shown(
    model: onnx.ModelProto, batches: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, TensorType]]:
    """Specs of all results of nodes that are known by their kinds; the model gets them as outputs.

    Raises:
        RowsMeet: the model does not run on these batches.
    """
    known = [node for node in model.graph.node if _kind(node) in LEADING]
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
    """Specs of operands in one batch, and contents of those that are known in advance."""
    specs = {name: value.specs[at] for name, value in operands.items()}
    return specs, {name: value.contents[at] for name, value in operands.items() if value.contents}


def _rows(few: TensorType, many: TensorType) -> Rows:
    is_batch = (few.shape[:1], many.shape[:1]) == ((BATCHES[0],), (BATCHES[1],))
    if not is_batch or few.shape[1:] != many.shape[1:]:
        raise RowsMeet("does not give one part for each row")
    return Rows(0)


def _unknown(name: str) -> RowsMeet:
    return RowsMeet(f"{name!r} is computed after its reader, or not at all")
