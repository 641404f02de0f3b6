"""Networks as planners see them: units, wiring, and what each unit has to do. No torch.

GoogLeNet, ResNet-50 and BERT-base are built here. SqueezeNet, Inception V3, RandWire and NASNet-A
are read from the graphs of the IOS authors where these files are at hand (``paper_graph``), and
any graph that Braid imported can be read too (``imported_graph``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.synthetic import UnitLoad
from braid.core.graph import Operator, OpGraph, load_graph
from braid.scheduler.units import Operand, UnitGraph

Shape = tuple[int, ...]

PAPER_GRAPHS = Path(__file__).resolve().parents[2] / "shared" / "data" / "graphs"
"""Where the authors' graphs are looked for unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class Structure:
    """A network without weights: its units, their wiring and the load of each."""

    name: str
    units: UnitGraph
    loads: tuple[UnitLoad, ...]


@dataclass(slots=True)
class Builder:
    """Adds units one by one; a value is named by the unit that makes it, -1 is the input."""

    name: str
    input_shape: Shape  # [channels, height, width] or [tokens, features]
    _kinds: list[str] = field(default_factory=list)
    _signatures: list[str] = field(default_factory=list)
    _operands: list[tuple[Operand, ...]] = field(default_factory=list)
    _shapes: list[Shape] = field(default_factory=list)
    _loads: list[UnitLoad] = field(default_factory=list)

    def conv(self, value: int, channels: int, kernel: int, stride: int = 1) -> int:
        features, height, width = self.shape(value)
        shape = (channels, math.ceil(height / stride), math.ceil(width / stride))
        flops = 2.0 * math.prod(shape) * features * kernel * kernel
        return self.add("conv", [value], shape, flops, str((kernel, stride)))

    def pool(self, value: int, kernel: int, stride: int = 1) -> int:
        channels, height, width = self.shape(value)
        shape = (channels, math.ceil(height / stride), math.ceil(width / stride))
        flops = float(math.prod(shape)) * kernel * kernel
        return self.add("pool", [value], shape, flops, str((kernel, stride)))

    def concat(self, values: Sequence[int]) -> int:
        first = self.shape(values[0])
        channels = sum(self.shape(value)[0] for value in values)
        return self.add("concat", values, (channels, *first[1:]), 0.0)

    def linear(self, value: int, features: int) -> int:
        """A matrix product with weights, on [tokens, features]."""
        tokens, width = self.shape(value)
        return self.add("linear", [value], (tokens, features), 2.0 * tokens * width * features)

    def add(
        self, kind: str, values: Sequence[int], shape: Shape, flops: float, text: str = ""
    ) -> int:
        """Any unit: what it reads, what it makes, how much it computes."""
        inputs = [self.shape(value) for value in values]
        self._kinds.append(kind)
        self._signatures.append(f"{kind} {text} {inputs} {shape}")
        self._operands.append(tuple((value, 0) for value in values))
        self._shapes.append(shape)
        size = float(sum(map(math.prod, inputs)) + math.prod(shape))
        self._loads.append(UnitLoad(flops or math.prod(shape), 4 * size, math.prod(shape)))
        return len(self._kinds) - 1

    def shape(self, value: int) -> Shape:
        return self.input_shape if value < 0 else self._shapes[value]

    def build(self) -> Structure:
        names = tuple(f"{kind}{i}" for i, kind in enumerate(self._kinds))
        units = UnitGraph(
            self.name, names, tuple(self._kinds), tuple(self._signatures), tuple(self._operands)
        )
        return Structure(self.name, units, tuple(self._loads))


_INCEPTION_MODULES = (  # 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5 (a 3x3 in torchvision); pool
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def googlenet() -> Structure:
    """GoogLeNet without its auxiliary heads (Szegedy et al., 2015, table 1)."""
    net = Builder("googlenet", (3, 224, 224))
    value = net.pool(net.conv(-1, 64, 7, 2), 3, 2)
    value = net.pool(net.conv(net.conv(value, 64, 1), 192, 3), 3, 2)
    for number, (c1, r3, c3, r5, c5, cp) in enumerate(_INCEPTION_MODULES):
        if number in (2, 7):
            value = net.pool(value, 3, 2)
        branches = [
            net.conv(value, c1, 1),
            net.conv(net.conv(value, r3, 1), c3, 3),
            net.conv(net.conv(value, r5, 1), c5, 3),
            net.conv(net.pool(value, 3), cp, 1),
        ]
        value = net.concat(branches)
    pooled = net.add("mean", [value], (1, 1024), 1024.0 * 49)
    net.linear(pooled, 1000)
    return net.build()


def resnet50() -> Structure:
    """ResNet-50; a convolution includes the addition of the shortcut that follows it."""
    net = Builder("resnet50", (3, 224, 224))
    value = net.pool(net.conv(-1, 64, 7, 2), 3, 2)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        channels = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            inner = net.conv(net.conv(value, channels, 1), channels, 3, stride)
            shortcut = net.conv(value, 4 * channels, 1, stride) if not block else value
            features, *size = net.shape(inner)
            shape = (4 * channels, *size)
            flops = 2.0 * math.prod(shape) * features
            value = net.add("conv+add", [inner, shortcut], shape, flops)
    net.linear(net.add("mean", [value], (1, 2048), 2048.0 * 49), 1000)
    return net.build()


def bert_base(tokens: int = 128) -> Structure:
    """The encoder of BERT-base: 12 layers of 12 heads."""
    net = Builder("bert-base", (tokens, 768))
    value = -1
    for _ in range(12):
        query, key, content = (net.linear(value, 768) for _ in range(3))
        mixed = net.add(
            "attention", [query, key, content], (tokens, 768), 4.0 * tokens * tokens * 768
        )
        value = _add_and_norm(net, net.linear(mixed, 768), value)
        hidden = net.linear(value, 3072)
        value = _add_and_norm(net, net.linear(hidden, 768), value)
    return net.build()


def _add_and_norm(net: Builder, value: int, shortcut: int) -> int:
    shape = net.shape(value)
    return net.add("add+norm", [value, shortcut], shape, 8.0 * math.prod(shape))


def paper_graph(path: Path) -> Structure:
    """A graph of the IOS authors: blocks of operators with shapes."""
    document = json.loads(path.read_text())
    operators = [op for block in document["blocks"] for op in block["operators"]]
    made_by = {op["id"]: i for i, op in enumerate(operators)}
    outside: dict[int, Operand] = {}
    operands = []
    for op in operators:
        row = [
            (made_by[value], 0)
            if value in made_by
            else outside.setdefault(value, (-1 - len(outside), 0))
            for value in op["inputs"]
        ]
        operands.append(tuple(row))
    units = UnitGraph(
        name=document["network"],
        names=tuple(str(op["name"]) for op in operators),
        kinds=tuple(op["type"] for op in operators),
        signatures=tuple(map(_paper_signature, operators)),
        operands=tuple(operands),
    )
    return Structure(document["network"], units, tuple(map(_paper_load, operators)))


def _paper_signature(op: Mapping[str, Any]) -> str:
    fields = ("type", "in_shape", "out_shape", "kernel", "stride", "padding", "groups")
    terms = [len(term) for term in op["input_terms"]]  # concatenated lists of summed inputs
    return json.dumps([*(op.get(name) for name in fields), op.get("pool_type"), terms])


def _paper_load(op: Mapping[str, Any]) -> UnitLoad:
    source, result = math.prod(op["in_shape"]), math.prod(op["out_shape"])
    window = math.prod(op["kernel"] or [1])
    channels = op["in_shape"][0]
    if op["type"] in ("conv", "reluconv"):
        flops = 2.0 * result * window * channels / (op["groups"] or 1)
    elif op["type"] == "relusepconv":  # depthwise, then pointwise, through memory in between
        between = channels * math.prod(op["out_shape"][1:])
        flops = 2.0 * between * window + 2.0 * result * channels
        source += 2 * between
    else:
        flops = float(result * window)
    return UnitLoad(flops, 4.0 * (source + result), result)


def imported_graph(path: Path) -> Structure:
    """The static graph of an imported model: ``braid.core.graph`` JSON."""
    graph = load_graph(path.read_text())
    units = UnitGraph.from_graph(graph)
    return Structure(graph.name, units, tuple(unit_load(graph, op) for op in graph.operators))


def unit_load(graph: OpGraph, op: Operator) -> UnitLoad:
    result = graph.spec(op.outputs[0])
    reads = [graph.spec(value) for value in op.inputs if value]
    size = sum(spec.size_bytes for spec in [*reads, result])
    weights = [graph.constants[value] for value in op.inputs if value in graph.constants]
    flops = float(result.elements)
    if op.kind in ("aten.convolution", "aten.linear") and weights:
        flops *= 2.0 * weights[0].elements / int(weights[0].shape[0])
    elif op.kind == "aten.matmul":
        flops *= 2.0 * int(reads[0].shape[-1])
    return UnitLoad(flops, float(size), float(result.elements))
