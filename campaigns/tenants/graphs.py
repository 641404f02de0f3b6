"""Random graphs: steps that keep the rows of a batch apart, and in half of them steps that do not.

    x ──apart──> ... ──mix, at a random place──> ... ──apart──> y

A mix influences other rows always, or only for some numbers, numbers of rows or places in a batch.
In a step ``v`` is what it reads and ``r`` what it makes; ``n`` is the number of rows, ``loud``
whether any number of ``x`` is large; constants have upper case, and are described in ``_constant``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Shape = tuple[int, ...]  # of a row

APART = {
    "tanh": "r = Tanh(v)",
    "relu": "r = Relu(v)",
    "abs": "r = Abs(v)",
    "scale": "r = Mul(v, ROW)",
    "bias": "a = Shape(v); b = Expand(ROW, a); r = Add(v, b)",
    "linear": "r = MatMul(v, MATRIX)",
    "convolution": "r = Conv<pads=[1, 1, 1, 1]>(v, FILTERS)",
    "norm": "r = LayerNormalization<axis=-1>(v, SCALE)",
    "softmax": "r = Softmax<axis=-1>(v)",
    "centre": "a = ReduceMean<axes=[-1], keepdims=1>(v); r = Sub(v, a)",
    "flat": "r = Reshape(v, FLAT)",
    "turned": "a = Transpose<perm=TURN>(v); b = Tanh(a); r = Transpose<perm=TURN>(b)",
    "as one matrix": "a = Reshape(v, MATRICES); b = MatMul(a, MATRIX); r = Reshape(b, ROWS)",
    "to its shape": "a = Concat<axis=0>(n, SHAPE); r = Reshape(v, a)",
    "attention": "a = Transpose<perm=[0, 2, 1]>(v); b = MatMul(v, a); c = Softmax<axis=-1>(b);"
    " r = MatMul(c, v)",
    "running sum": "r = CumSum(v, LAST)",
    "largest": "r, q = TopK<axis=-1>(v, FOUR)",
    "branches": "a = Tanh(v); b = Relu(v); r = Concat<axis=-1>(a, b)",
}
"""Steps that keep rows apart."""

MIXES = {
    "largest of a batch": "a = ReduceMax<axes=[0], keepdims=1>(v); r = Sub(v, a)",
    "mean of all": "a = ReduceMean<keepdims=0>(v); r = Add(v, a)",
    "length of a batch": "a = ReduceL2<axes=[0], keepdims=1>(v); r = Add(v, a)",
    "sum": "a = ReduceSum<keepdims=1>(v, ZERO); r = Sub(v, a)",
    "clipped": "a = ReduceMean<keepdims=0>(v); r = Min(v, a)",
    "scaled if loud": "a = Where(loud, FIFTY, ONE); r = Div(v, a)",
    "branch if loud": "r = If(loud, v)",
    "blank by NaN": "a = IsNaN(x); b = Cast<to=1>(a); c = ReduceMax<keepdims=0>(b);"
    " d = Cast<to=9>(c); r = Where(d, NOTHING, v)",
    "batch norm": "a = ReduceMean<axes=[0]>(v); b = Sub(v, a); c = Mul(b, b);"
    " d = ReduceMean<axes=[0]>(c); e = Add(d, ONE); f = Sqrt(e); r = Div(b, f)",
    "sorted": "r, q = TopK<axis=0>(v, n)",
    "running sum": "r = CumSum(v, ZERO)",
    "softmax": "r = Softmax<axis=0>(v)",
    "first row": "a = Slice(v, ZERO, FIRST, ZERO); r = Add(v, a)",
    "last row": "a = Slice(v, BACK, END, ZERO); r = Add(v, a)",
    "only the first row": "r = Gather<axis=0>(v, AT)",
    "rolled": "a = Slice(v, BACK, END, ZERO); b = Slice(v, ZERO, BACK, ZERO);"
    " c = Concat<axis=0>(a, b); d = Mul(c, HALF); r = Sub(v, d)",
    "folded": "a = Reshape(v, FOLD); b = Mul(a, COLUMN); r = Reshape(b, ROWS)",
    "scattered": "a = Sub(n, FIRST); b = Unsqueeze(a, ZERO); c = Slice(v, ZERO, FIRST, ZERO);"
    " r = ScatterND(v, b, c)",
    "rule of six": "a = GreaterOrEqual(n, SIX); b = Mul(v, HALF); r = Where(a, b, v)",
    "by rows": "a = Cast<to=1>(n); r = Div(v, a)",
    "positions": "a = Squeeze(n); b = Range(AT, a, BY); c = Reshape(b, STAND); d = Cast<to=1>(c);"
    " r = Add(v, d)",
    "rows to rows": "a = Reshape(v, FLAT); b = Transpose<perm=[1, 0]>(a); c = MatMul(a, b);"
    " d = Softmax<axis=-1>(c); e = MatMul(d, a); r = Reshape(e, ROWS)",
}
"""Steps by which rows influence each other."""

FACTS = {
    "n": "n = Shape<start=0, end=1>(x)",
    "loud": "most = Abs(x); top = ReduceMax<keepdims=0>(most); loud = Greater(top, LIMIT)",
}
_CALL = re.compile(r"(\w[\w, ]*) = (\w+)(?:<(.*?)>)?\((.*?)\)")
_INTEGERS = {"ZERO": 0, "FIRST": 1, "BACK": -1, "END": 1 << 62, "FOUR": 4, "SIX": 6}
_NUMBERS = {"NOTHING": 0.0, "HALF": 0.5, "ONE": 1.0, "LIMIT": 2000.0, "FIFTY": 50.0}


def _constant(name: str, shape: Shape, random: np.random.Generator) -> Any:
    """Value of a constant in a step that reads rows of a shape."""
    shapes = {"FLAT": [0, -1], "MATRICES": [-1, shape[-1]], "SHAPE": shape, "FOLD": [shape[0], -1]}
    if name in _NUMBERS:
        return np.float32(_NUMBERS[name])
    if name in ("AT", "BY"):
        return np.int64(name == "BY")
    integers = {key: [value] for key, value in _INTEGERS.items()} | shapes | {"LAST": [len(shape)]}
    integers |= {"STAND": [-1] + [1] * len(shape), "ROWS": [-1, *shape]}
    if name in integers:
        return np.array(integers[name], np.int64)
    extents = {"ROW": shape, "MATRIX": (shape[-1], 8), "SCALE": shape[-1:], "COLUMN": (shape[0], 1)}
    filters = (2, shape[0], 3, 3)
    return random.normal(size=extents.get(name, filters)).astype(np.float32) / 2


def _shape_after(name: str, shape: Shape) -> Shape:
    flat = (int(np.prod(shape)),)
    ends = {"linear": 8, "as one matrix": 8, "largest": 4, "branches": 2 * shape[-1]}
    changed = {"flat": flat, "convolution": (2, *shape[1:])}
    return changed.get(name, (*shape[:-1], ends[name]) if name in ends else shape)


class _Drawing:
    def __init__(self, random: np.random.Generator, row: Shape) -> None:
        self.random, self.shape, self.latest = random, row, "x"
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._facts: dict[str, str] = {}

    def step(self, name: str, text: str) -> None:
        """Add the operators of a step."""
        at = {"x": "x", "v": self.latest}
        if name == "as one matrix":
            text = text.replace("ROWS", "ROWS_8")
        for fact in [fact for fact in FACTS if re.search(rf"\b{fact}\b", text)]:
            if fact not in self._facts:
                self._facts[fact] = self._calls(FACTS[fact], {"x": "x"})[fact]
            at[fact] = self._facts[fact]
        self.latest = self._calls(text, at)["r"]
        self.shape = _shape_after(name, self.shape)

    def _calls(self, text: str, at: dict[str, str]) -> dict[str, str]:
        """Add operators; ``at`` has the names of values so far, and then of all results."""
        turn = [1, 0, *range(2, len(self.shape) + 1)]
        for results, kind, given, inputs in _CALL.findall(text.replace("TURN", str(turn))):
            pairs = re.findall(r"(\w+)=(\[.*?\]|-?\w+)", given)
            attributes = {key: ast.literal_eval(value) for key, value in pairs}
            names = [at[each] if each in at else self._given(each) for each in inputs.split(", ")]
            made = [f"v{len(self.nodes)}_{each}" for each in results.split(", ")]
            if kind == "If":
                names, attributes = names[:1], self._branches(names[1])
            self.nodes.append(helper.make_node(kind, names, made, **attributes))
            at |= dict(zip(results.split(", "), made, strict=True))
        return at

    def _given(self, name: str) -> str:
        name, _, last = name.partition("_")
        shape = (*self.shape[:-1], int(last)) if last else self.shape
        value = np.asarray(_constant(name, shape, self.random))
        self.constants.append(numpy_helper.from_array(value, f"c{len(self.constants)}"))
        return str(self.constants[-1].name)

    def _branches(self, value: str) -> dict[str, Any]:
        graphs = {}
        for branch, kind in (("then_branch", "Neg"), ("else_branch", "Relu")):
            made = helper.make_tensor_value_info(
                f"{kind}{len(self.nodes)}", TensorProto.FLOAT, None
            )
            nodes = [helper.make_node(kind, [value], [made.name])]
            graphs[branch] = helper.make_graph(nodes, kind, [], [made])
        return graphs


@dataclass(frozen=True, slots=True)
class Drawn:
    """A model, and how it mixes rows; not at all: they are apart."""

    model: ModelProto
    row: Shape  # of ``x``
    mixes: tuple[str, ...]
    is_fixed: bool  # exported at batch 1


def draw(seed: int, mixes: Sequence[str] | None = None) -> Drawn:
    """A model of two to six steps; of odd seeds with a mix or two, unless ``mixes`` says which."""
    random = np.random.default_rng(seed)
    row = ((16,), (16,), (4, 8), (3, 6, 6))[random.integers(4)]
    if mixes is None:
        mixes = random.choice(list(MIXES), seed % 2 * random.integers(1, 3), replace=False).tolist()
    names = random.choice(list(APART), random.integers(2, 7)).tolist()
    steps = [(name, APART[name]) for name in names]
    for name in mixes:
        steps.insert(int(random.integers(len(steps) + 1)), (name, MIXES[name]))
    drawing, outputs = _Drawing(random, row), []
    rows = 1 if (is_fixed := bool(random.random() < 0.2)) else "N"
    for name, text in sorted(steps, key=lambda step: step[0] == "only the first row"):
        if len(drawing.shape) != {"convolution": 3, "attention": 2}.get(name, len(drawing.shape)):
            name, text = "tanh", APART["tanh"]
        if name == "only the first row" and random.random() < 0.5:
            outputs.append((drawing.latest, [rows, *drawing.shape]))
        drawing.step(name, text)
    lost = "only the first row" in mixes
    outputs.append((drawing.latest, [*drawing.shape] if lost else [rows, *drawing.shape]))
    named = []
    for number, (value, extents) in enumerate(outputs):
        drawing.nodes.append(helper.make_node("Identity", [value], [f"y{number}"]))
        named.append(helper.make_tensor_value_info(f"y{number}", TensorProto.FLOAT, extents))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, *row])
    graph = helper.make_graph(drawing.nodes, "tenants", [x], named, drawing.constants)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return Drawn(model, row, tuple(mixes), is_fixed)
