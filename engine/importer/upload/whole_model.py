"""Models outside the lowering table: served by ONNX Runtime as one unit, where that is safe.

    refused by the table ──safe?──> run at likely shapes ──> which extents do outputs follow?
                                                               └──> template of one operator

Safe means: plain tensors at the boundary, operators of ONNX and of ONNX Runtime itself, loops that
end, results whose shapes do not depend on content. Everything against it is said in one message,
together with why the table refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
import torch
from onnx import inliner
from torch import Tensor

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import Literal, Operator, OpGraph
from braid.core.tensor import TensorType
from braid.engine.importer.sandbox.run_limit import trial
from braid.engine.importer.upload.loops import loops_against
from braid.engine.importer.verification.example_inputs import Example, drawable
from braid.engine.importer.verification.likely_shapes import shape_candidates, wanted_shapes
from braid.engine.importer.verification.reference import ReferenceFailed, ReferenceModel
from braid.engine.lowering.unsupported_use import UnsupportedUse
from braid.engine.onnx.structure import all_nodes
from braid.engine.onnx.tensors import input_spec
from braid.engine.ops.dtypes import spec_of
from braid.engine.ops.refused_values import ADDRESSES
from braid.engine.ops.whole import KIND, open_session

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_MOST_TRIALS = 100
_LOOPS = frozenset({"Loop", "Scan", "SequenceMap"})
_MODEL = "model"

Extents = Mapping[str, int]


def as_one_unit(
    model: onnx.ModelProto,
    reasons: tuple[str, ...],
    open_reference: Callable[[], ReferenceModel],
    given: Mapping[str, tuple[int, ...]],
) -> tuple[OpGraph, dict[str, Tensor]]:
    """The template of one operator that runs the whole model.

    Args:
        model: with all its weights.
        reasons: why the lowering table refused it.
        open_reference: loads the uploaded model.
        given: shapes the caller knows to work, by input.

    Raises:
        UnsupportedOperators: it is not safe, or ONNX Runtime refuses it too; with all reasons.
    """
    inputs, against = _boundary(model)
    against += [*_foreign(model), *_endless(model)]
    if maps := _zip_maps(model):  # without these, ONNX Runtime could serve what the table lacks
        raise UnsupportedOperators((*maps, *against))
    data = model.SerializeToString()
    if not against:
        try:
            with trial():
                open_session(data, 1)
        except Exception as error:  # its exceptions share no base but this
            first = str(error).strip().partition("\n")[0][:300]
            against.append(f"ONNX Runtime, which could serve it whole, refuses it: {first}")
    if against:
        raise UnsupportedOperators((*reasons, *against))
    try:
        found = _Probe(inputs, open_reference()).run(given)
    except ModelImportError as error:
        raise UnsupportedOperators((*reasons, str(error))) from error
    loops = any(node.op_type in _LOOPS for node in _all_nodes(model))
    return _template(model, found, data, loops)


def _boundary(model: onnx.ModelProto) -> tuple[dict[str, TensorType], list[str]]:
    """Specs of the inputs, and reasons against inputs and outputs that are no tensors."""
    given = {proto.name for proto in model.graph.initializer}
    inputs, against = {}, []
    for info in model.graph.input:
        if info.name in given:
            continue
        try:
            inputs[info.name] = input_spec(info)
        except (UnsupportedUse, ModelImportError) as error:
            against.append(f"input {info.name!r}: {error}")
    zipped = _zipped(model)
    against += [
        f"output {info.name!r} is not a tensor"
        for info in model.graph.output
        if not info.type.HasField("tensor_type") and info.name not in zipped
    ]
    if not inputs and not against:
        against.append("the model has no inputs")
    return inputs, against


def _zip_maps(model: onnx.ModelProto) -> list[str]:
    """Outputs that are dictionaries, as scikit-learn's classifiers are exported by default."""
    zipped = _zipped(model)
    return [
        f"output {info.name!r} is a list of dictionaries (ZipMap), not a tensor; export the "
        "classifier again with convert_sklearn(..., options={'zipmap': False})"
        for info in model.graph.output
        if info.name in zipped
    ]


def _zipped(model: onnx.ModelProto) -> set[str]:
    """Values that ZipMap makes."""
    return {name for node in model.graph.node if node.op_type == "ZipMap" for name in node.output}


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Nodes of the graph, of the local functions and of all their subgraphs."""
    for body in (model.graph.node, *(function.node for function in model.functions)):
        yield from all_nodes(body)


def _foreign(model: onnx.ModelProto) -> list[str]:
    own = {function.domain for function in model.functions}
    used = {node.domain for node in _all_nodes(model)}
    return [
        f"operators of domain {domain!r}: their code is not part of the file, and none is loaded"
        for domain in sorted(used - own - set(DOMAINS))
    ]


def _endless(model: onnx.ModelProto) -> list[str]:
    """Reasons against loops that certainly run too often, also in local functions."""
    if not any(node.op_type == "Loop" for node in _all_nodes(model)):
        return []
    return loops_against(inliner.inline_local_functions(model) if model.functions else model)


@dataclass(frozen=True, slots=True)
class _Found:
    """Specs that runs of the model have shown."""

    inputs: Mapping[str, TensorType]  # extents that outputs follow in odd ways are fixed
    outputs: Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class _Probe:
    """Runs of a model at several extents, to find those that its outputs have."""

    inputs: Mapping[str, TensorType]
    reference: ReferenceModel

    def run(self, given: Mapping[str, tuple[int, ...]]) -> _Found:
        """Find specs of inputs and outputs.

        Raises:
            ModelImportError: the model runs at no shapes, or output shapes depend on content.
        """
        bare = OpGraph("model", self.inputs, {}, {}, ())
        failure = "nothing was tried"
        for count, specs in enumerate(shape_candidates(bare, given)):
            example = drawable(self.reference, specs)
            if isinstance(example, Example):
                return self._around(example)
            failure = example
            if count >= _MOST_TRIALS:
                break
        options = wanted_shapes(self.inputs)
        give = f"; register it with shapes that it takes: {options}" if options else ""
        raise ModelImportError(f"it does not run at any shapes tried{give} ({failure})")

    def _around(self, example: Example) -> _Found:
        """Specs from runs that change one open extent at a time."""
        base = self._extents(example)
        first = self._shapes(example, seeds=3)
        self._check_sparse(example, first)
        followed = {name: list(spec.shape) for name, spec in first.items()}
        fixed: dict[str, int] = {}
        for symbol, extent in base.items():
            other = self._elsewhere(example, {**base, symbol: extent + 1 if extent > 1 else 2})
            if other is None or not _follows(symbol, base, first, other, followed):
                fixed[symbol] = extent
        inputs = {name: spec.bind(fixed) for name, spec in self.inputs.items()}
        outputs = {
            name: TensorType(spec.dtype, tuple(followed[name])).bind(fixed)
            for name, spec in first.items()
        }
        return _Found(inputs, outputs)

    def _extents(self, example: Example) -> dict[str, int]:
        return {
            dim: int(extent)
            for name, spec in self.inputs.items()
            for dim, extent in zip(spec.shape, example.specs[name].shape, strict=True)
            if isinstance(dim, str)
        }

    def _shapes(self, example: Example, seeds: int) -> dict[str, TensorType]:
        """Specs of the outputs, the same for all seeds.

        Raises:
            ModelImportError: they are not.
            ReferenceFailed: it does not run.
        """
        runs = [self.reference.run(example.draw(None, seed)) for seed in range(seeds)]
        specs = [{name: spec_of(tensor) for name, tensor in run.items()} for run in runs]
        for later in specs[1:]:
            odd = [name for name in later if later[name] != specs[0][name]]
            if odd:
                raise ModelImportError(f"the shape of output {odd[0]!r} depends on content")
        return specs[0]

    def _check_sparse(self, example: Example, first: Mapping[str, TensorType]) -> None:
        """Run on many zeros and on zeros only, for which counts of found positions become smaller.

        Raises:
            ModelImportError: the shapes of the outputs change with it.
        """
        drawn = example.draw(None, seed=3)
        for factor in (0, 1):
            content = {name: tensor.clamp_min(0) * factor for name, tensor in drawn.items()}
            content = {name: t.to(drawn[name].dtype) for name, t in content.items()}
            try:
                results = self.reference.run(content)
            except ReferenceFailed:
                continue
            odd = [name for name, tensor in results.items() if spec_of(tensor) != first[name]]
            if odd:
                raise ModelImportError(f"the shape of output {odd[0]!r} depends on content")

    def _elsewhere(self, example: Example, extents: Extents) -> dict[str, TensorType] | None:
        specs = {name: spec.bind(extents) for name, spec in self.inputs.items()}
        moved = Example(specs, {}, example.integers_below, example.positive)
        try:
            return self._shapes(moved, seeds=1)
        except ReferenceFailed:
            return None


def _follows(
    symbol: str,
    base: Extents,
    first: Mapping[str, TensorType],
    other: Mapping[str, TensorType],
    followed: dict[str, list[int | str]],
) -> bool:
    """Write the symbol where an output extent follows it; False if one changes in another way."""
    changed = base[symbol] + 1 if base[symbol] > 1 else 2
    marks = []
    for name, spec in first.items():
        if len(other[name].shape) != len(spec.shape):
            return False
        for axis, (old, new) in enumerate(zip(spec.shape, other[name].shape, strict=True)):
            if old == new:
                continue
            if (old, new) != (base[symbol], changed):
                return False
            marks.append((name, axis))
    for name, axis in marks:
        followed[name][axis] = symbol
    return True


def _origins(model: onnx.ModelProto, inputs: Iterable[str]) -> list[Literal]:
    """For each kind of operator that takes values for addresses, the inputs these come from."""
    sources: dict[str, frozenset[str]] = {name: frozenset({name}) for name in inputs}
    found: dict[str, set[str]] = {}
    none: frozenset[str] = frozenset()
    for node in model.graph.node:
        for place in ADDRESSES.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in sources:
                found.setdefault(node.op_type, set()).update(sources[node.input[place]])
        read = [name for inside in all_nodes([node]) for name in inside.input]
        from_here = none.union(*(sources.get(name, none) for name in read))
        if from_here:
            sources.update(dict.fromkeys(node.output, from_here))
    return [[kind, *sorted(names)] for kind, names in sorted(found.items())]


def _template(
    model: onnx.ModelProto, found: _Found, data: bytes, loops: bool
) -> tuple[OpGraph, dict[str, Tensor]]:
    constant = _MODEL
    while constant in found.inputs or constant in found.outputs:
        constant += "'"
    names: list[Literal] = list(found.inputs)
    outputs: list[Literal] = list(found.outputs)
    attributes: dict[str, Literal] = {
        "names": names,
        "outputs": outputs,
        "input_shapes": [list(spec.shape) for spec in found.inputs.values()],
        "shapes": [list(spec.shape) for spec in found.outputs.values()],
        "dtypes": [spec.dtype for spec in found.outputs.values()],
        "loops": loops,
        "origins": _origins(model, found.inputs),
    }
    values = tuple(f"{name}:0" for name in found.outputs)
    weights = {constant: torch.frombuffer(bytearray(data), dtype=torch.uint8)}
    operator = Operator(
        "onnxruntime", KIND, (constant, *found.inputs), values, attributes=attributes
    )
    graph = OpGraph(
        name=model.graph.name or "model",
        inputs=found.inputs,
        outputs=dict(zip(found.outputs, values, strict=True)),
        constants={name: spec_of(tensor) for name, tensor in weights.items()},
        operators=(operator,),
    )
    graph.verify()
    return graph, weights
