"""What the walk over a graph shows of rows: who may share a batch, and who may not."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from braid.core.errors import InvalidRequest
from braid.engine.importer.rows.facts import RowsMeet
from braid.engine.importer.rows.rules import RULES
from braid.engine.importer.rows.walk import batch_axes
from braid.engine.importer.rows.whole import batch_axes_of_whole
from braid.engine.importer.upload.batch_axis import guess_batch
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.prepare import prepare
from braid.engine.ops.kinds import OPS
from braid.engine.passes import run_passes
from braid.engine.passes.specialise import interpret
from tests.engine.onnx.oracle import static_graph
from tests.models.graphs import parsed

EXTENT = 5  # of symbols other than n

Axes = dict[str, int | None]


def specs_of(made: onnx.ModelProto, rows: int) -> dict[str, torch.Tensor]:
    """Random content of so many rows for all inputs."""
    generator = np.random.default_rng(rows)
    given = {}
    for info in made.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        dims = info.type.tensor_type.shape.dim
        shape = [rows, *(d.dim_value or EXTENT for d in dims[1:])]
        array = generator.standard_normal(shape) if kind.kind == "f" else np.zeros(shape)
        given[info.name] = torch.from_numpy(array.astype(kind))
    return given


def lowered_axes(made: onnx.ModelProto) -> Axes:
    template, weights = run_passes(*lower(prepare(made)))
    guess = guess_batch(template)
    assert guess is not None
    specs = {
        name: spec.bind({dim: EXTENT for dim in spec.shape if isinstance(dim, str)})
        for name, spec in guess.inputs.items()
    }
    return batch_axes(guess, weights, specs)


def whole_axes(made: onnx.ModelProto) -> Axes:
    return batch_axes_of_whole(made, [specs_of(made, rows) for rows in (6, 7)])


WAYS = {"lowered": lowered_axes, "whole": whole_axes}

F4 = "(float[n,4] x) => (y)"
MEETING = {
    # a value of the whole batch decides
    "loud": f"""{F4} <float limit = {{256.0}}, float by = {{32768.0}}, float one = {{1.0}}>
        {{ a = Abs(x) top = ReduceMax<keepdims=0>(a) deep = Greater(top, limit)
           f = Where(deep, by, one) y = Div(x, f) }}""",
    "blank": f"""{F4} <float zero = {{0.0}}>
        {{ m = IsNaN(x) c = Cast<to=1>(m) any = ReduceMax<keepdims=0>(c) bad = Cast<to=9>(any)
           y = Where(bad, zero, x) }}""",
    "clip": f"{F4} {{ top = ReduceMean<keepdims=0>(x) y = Min(x, top) }}",
    "sum": f"{F4} <int64[1] axes = {{0}}> {{ s = ReduceSum(x, axes) y = Mul(x, s) }}",
    "norm": f"{F4} {{ s = ReduceL2<axes=[0], keepdims=1>(x) y = Div(x, s) }}",
    "branch": f"""{F4} {{ top = ReduceMax<keepdims=0>(x) deep = IsInf(top)
           c = Cast<to=1>(deep) y = Add(x, c) }}""",
    # along the rows
    "softmax": f"{F4} {{ y = Softmax<axis=0>(x) }}",
    "running sum": f"{F4} <int64 axis = {{0}}> {{ y = CumSum(x, axis) }}",
    "largest": f"{F4} <int64[1] k = {{2}}> {{ v, i = TopK<axis=0>(x, k) y = Identity(v) }}",
    "argument": f"{F4} {{ i = ArgMax<axis=0, keepdims=1>(x) f = Cast<to=1>(i) y = Add(x, f) }}",
    # other rows
    "first row": f"{F4} <int64 i = {{0}}> {{ y = Gather<axis=0>(x, i) }}",
    "first row sliced": f"""{F4} <int64[1] a = {{0}}, int64[1] b = {{1}}>
        {{ y = Slice(x, a, b, a) }}""",
    "first row beside": f"{F4} <int64[1] i = {{0}}> {{ f = Gather<axis=0>(x, i) y = Sub(x, f) }}",
    "turned": f"""{F4} <int64[1] a = {{0}}, int64[1] b = {{-1}}, int64[1] e = {{-1000}}>
        {{ y = Slice(x, b, e, a, b) }}""",
    "rolled": f"""{F4} <int64[1] a = {{0}}, int64[1] b = {{1}}, int64[1] e = {{1000}}>
        {{ tail = Slice(x, b, e, a) head = Slice(x, a, b, a) y = Concat<axis=0>(tail, head) }}""",
    "moved by padding": f"""{F4} <int64[4] p = {{1, 0, -1, 0}}> {{ y = Pad(x, p) }}""",
    "looked up": "(int64[n,4] x, float[n,4] t) => (y) { y = Gather<axis=0>(t, x) }",
    "product": f"{F4} {{ t = Transpose<perm=[1,0]>(x) s = MatMul(x, t) y = MatMul(s, x) }}",
    "regrouped": f"""{F4} <int64[2] a = {{4, -1}}, int64[2] b = {{-1, 4}}>
        {{ r = Reshape(x, a) s = Softmax<axis=1>(r) y = Reshape(s, b) }}""",
    "across pairs": f"""{F4} <int64[3] a = {{-1, 2, 4}}, int64[2] b = {{-1, 4}}>
        {{ r = Reshape(x, a) m = ReduceMean<axes=[1], keepdims=1>(r) s = Sub(r, m)
           y = Reshape(s, b) }}""",
    "as channels": f"""{F4} <int64[3] a = {{1, -1, 4}}, int64[2] b = {{-1, 4}}>
        {{ r = Reshape(x, a) s = LpNormalization<axis=1>(r) y = Reshape(s, b) }}""",
    "written": f"""{F4} <int64[1,1] i = {{0}}, float[1,4] u = {{0.0, 0.0, 0.0, 0.0}}>
        {{ y = ScatterND(x, i, u) }}""",
    # the number of rows, or the place of one
    "number of rows": f"""{F4}
        {{ s = Shape<start=0, end=1>(x) f = Cast<to=1>(s) y = Div(x, f) }}""",
    "from a hundred rows on": f"""{F4} <int64[1] limit = {{100}}>
        {{ s = Shape<start=0, end=1>(x) many = Greater(s, limit) c = Cast<to=1>(many)
           y = Sub(x, c) }}""",
    "up to a hundred rows": f"""{F4} <int64[1] limit = {{100}}, int64[1] four = {{4}}>
        {{ s = Shape<start=0, end=1>(x) m = Min(s, limit) t = Concat<axis=0>(m, four)
           y = Reshape(x, t) }}""",
    "half of the rows": f"""{F4} <int64[1] two = {{2}}>
        {{ s = Shape<start=0, end=1>(x) h = Div(s, two) d = Sub(s, h) e = Sub(d, h)
           f = Cast<to=1>(e) y = Add(x, f) }}""",
    "places": f"""{F4} <int64 z = {{0}}, int64 one = {{1}}, int64[1] axis = {{1}}, int64 i = {{0}}>
        {{ s = Shape(x) b = Gather(s, i) r = Range(z, b, one) c = Unsqueeze(r, axis)
           f = Cast<to=1>(c) y = Add(x, f) }}""",
    "neighbours by place": f"""{F4}
        <int64 z = {{0}}, int64 one = {{1}}, int64[1] axis = {{1}}, int64[2] t = {{-1, 4}},
         int64[1] flat = {{-1}}, int64 i = {{0}}, int64[1,4] o = {{0, 1, 2, 4}}, int64 four = {{4}}>
        {{ s = Shape(x) b = Gather(s, i) r = Range(z, b, one) m = Mul(r, four)
           c = Unsqueeze(m, axis) p = Add(c, o) l = Reshape(x, flat) y = Gather<axis=0>(l, p) }}""",
}
"""Models whose rows influence each other, or may."""

APART: dict[str, tuple[str, Axes]] = {
    "own width": (f"{F4} {{ m = ReduceMax<axes=[1], keepdims=1>(x) y = Div(x, m) }}", {"y": 0}),
    "turned around": (f"{F4} {{ y = Transpose<perm=[1,0]>(x) }}", {"y": 1}),
    "heads": (
        """(float[n,l,8] x) => (y)
        <int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {-1, 5, 4}, int64[3] back = {0, 0, 8},
         int64[4] four = {-1, 2, 5, 4}>
        { h = Reshape(x, heads) t = Transpose<perm=[0,2,1,3]>(h) j = Reshape(t, joined)
          k = Transpose<perm=[0,2,1]>(j) s = MatMul(j, k) p = Softmax<axis=-1>(s)
          a = MatMul(p, j) f = Reshape(a, four) b = Transpose<perm=[0,2,1,3]>(f)
          y = Reshape(b, back) }""",
        {"y": 0},
    ),
    "steps first": (
        """(float[n,l,4] x) => (y)
        <int64[2] flat = {-1, 4}, int64[3] back = {5, -1, 4}>
        { t = Transpose<perm=[1,0,2]>(x) f = Reshape(t, flat) s = Softmax<axis=1>(f)
          b = Reshape(s, back) y = Transpose<perm=[1,0,2]>(b) }""",
        {"y": 0},
    ),
    "a token for each row": (
        """(float[n,l,4] x) => (y)
        <float[1,1,4] token = {1.0, 2.0, 3.0, 4.0}, int64[1] minus = {-1}, int64[1] one = {1},
         int64[1] z = {0}>
        { s = Shape(x) b = Slice(s, z, one) t = Concat<axis=0>(b, minus, minus)
          k = Shape(t) ones = Expand(one, k) no = Equal(t, minus) e = Where(no, ones, t)
          c = Expand(token, e) y = Concat<axis=1>(c, x) }""",
        {"y": 0},
    ),
    "the step of each row": (
        """(float[n,l,4] x, int64[n] i) => (y)
        <int64 z = {0}, int64 one = {1}, int64[1] last = {-1}, int64 first = {0}>
        { s = Shape(x) b = Gather(s, first) r = Range(z, b, one) p = Unsqueeze(r, last)
          q = Unsqueeze(i, last) at = Concat<axis=-1>(p, q) y = GatherND(x, at) }""",
        {"y": 0},
    ),
    "windows by place": (
        """(float[n,6] x) => (y)
        <int64 z = {0}, int64 one = {1}, int64[1] axis = {1}, int64[1] flat = {-1},
         int64 i = {0}, int64[1,3] o = {0, 2, 5}, int64 six = {6}>
        { s = Shape(x) b = Gather(s, i) r = Range(z, b, one) m = Mul(r, six)
          c = Unsqueeze(m, axis) p = Add(c, o) l = Reshape(x, flat) y = Gather<axis=0>(l, p) }""",
        {"y": 0},
    ),
    "the same for all": (
        "(float[n,4] x) => (y, z) <float[3] c = {1.0, 2.0, 3.0}> { y = Neg(c) z = Neg(x) }",
        {"y": None, "z": 0},
    ),
    "einsum": (
        "(float[n,l,2,4] q, float[n,l,2,4] k) => (y) "
        '{ y = Einsum<equation="...qhd,...khd->...hqk">(q, k) }',
        {"y": 0},
    ),
}
"""Models whose rows stay apart, with the batch axis of each output."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MEETING)
def test_rows_that_may_meet(name: str, way: str) -> None:
    with pytest.raises((RowsMeet, InvalidRequest)) as refusal:
        WAYS[way](parsed(MEETING[name]))

    assert str(refusal.value).startswith(("operator ", "output ", "the number of rows"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", APART)
def test_rows_that_stay_apart(name: str, way: str) -> None:
    text, axes = APART[name]

    assert WAYS[way](parsed(text)) == axes


@pytest.mark.parametrize("name", APART)
def test_what_is_shown_to_stay_apart_does(name: str) -> None:
    made = parsed(APART[name][0])
    inputs = specs_of(made, 3)
    run = static_graph(made, inputs)
    before = interpret(*run, inputs)
    strange = {
        n: torch.cat([x[:1], x[1:] * torch.nan if x.is_floating_point() else x[1:] + 1])
        for n, x in inputs.items()
    }

    after = interpret(*run, strange)

    for output, axis in APART[name][1].items():
        if axis is not None:
            assert torch.equal(after[output].select(axis, 0), before[output].select(axis, 0))


SCAN = """(float[n,3] x) => (y) <float[2,3] points = {{1., 2., 3., 4., 5., 6.}}>
    {{ top = ReduceMax<axes=[0], keepdims=1>(x)
       y = Scan<num_scan_inputs=1, body = each (float[3] p) => (float[n] d)
                {{ s = {} d = ReduceL2<axes=[1], keepdims=0>(s) }}>(points) }}"""
LOOP = """(float[n,6] x) => (y) <int64 m = {{3}}, bool go = {{1}}>
    {{ y = Loop<body = each (int64 i, bool c, float[a,b] s) => (bool d, float[a,b] t)
                {{ d = Identity(c) t = {} }}>(m, go, x) }}"""
WHOLE: dict[str, tuple[str, Axes | str]] = {
    "kinds of machine learning": (
        """(float[n,3] x) => (y)
        { s = ai.onnx.ml.Scaler<offset=[1.0, 2.0, 3.0], scale=[2.0, 2.0, 2.0]>(x)
          y = ai.onnx.ml.Normalizer<norm="L2">(s) }""",
        {"y": 0},
    ),
    "rows in a list": (
        '(float[n] x) => (y) { y = ai.onnx.ml.Normalizer<norm="L2">(x) }',
        "takes a list of rows for one row",
    ),
    # distances of each row to known points, as skl2onnx writes them
    "scan": (SCAN.format("Sub(x, p)"), {"y": 1}),
    "scan of the batch": (SCAN.format("Sub(x, top)"), "ReduceMax"),
    "loop": (LOOP.format("Mul(s, s)"), {"y": 0}),
    "loop across rows": (LOOP.format("Softmax<axis=0>(s)"), "Softmax"),
    "loop that turns around": (LOOP.format("Transpose<perm=[1,0]>(s)"), "has a state whose rows"),
    "labels looked up for each row": (
        """(float[n,3] x) => (y) <float[3] labels = {5., 6., 7.}, int64[1] flat = {-1}>
        { i = ArgMax<axis=1, keepdims=0>(x) l = ai.onnx.ml.ArrayFeatureExtractor(labels, i)
          y = Reshape(l, flat) }""",
        {"y": 0},
    ),
    "an unknown node": (
        "(float[n,3] x) => (y) { s = SequenceConstruct(x) y = ConcatFromSequence<axis=1>(s) }",
        r"SequenceConstruct_0.*not known to keep rows apart",
    ),
}
"""Models that run whole: with their axes, or why rows may meet."""


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_what_runs_whole(name: str) -> None:
    text, expected = WHOLE[name]

    if isinstance(expected, str):
        with pytest.raises(RowsMeet, match=expected):
            whole_axes(parsed(text))
    else:
        assert whole_axes(parsed(text)) == expected


def test_rules_are_of_kinds_that_exist() -> None:
    assert not RULES.keys() - OPS.keys()
