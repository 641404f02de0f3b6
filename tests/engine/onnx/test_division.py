"""Divisions of integers in models that run whole: no content ends the process."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from braid.engine.onnx.division import divides_integers, guard_division
from tests.models.graphs import parsed

Array = np.ndarray[Any, Any]

BODIES = {
    "at the top": "y = Div(a, b)",
    "in a branch": """y = If<then_branch = t () => (T[n] p) { p = Div(a, b) },
                             else_branch = e () => (T[n] q) { q = Identity(a) }>(yes)""",
    "in a loop": """y = Loop<body = each (int64 i, bool c, T[n] s) => (bool d, T[n] t)
                          { d = Identity(c) t = Div(s, b) }>(one, yes, a)""",
    "in a loop in a branch": """y = If<else_branch = e () => (T[n] q) { q = Identity(a) },
        then_branch = t () => (T[n] p) {
          p = Loop<body = each (int64 i, bool c, T[n] s) => (bool d, T[n] t)
                   { d = Identity(c) t = Div(s, b) }>(one, yes, a) }>(yes)""",
}


def model(body: str, kind: str = "int64", opset: int = 17) -> onnx.ModelProto:
    text = f"(T[n] a, T[n] b) => (T[n] y) <int64 one = {{1}}, bool yes = {{1}}> {{ {body} }}"
    return parsed(text.replace("T[", f"{kind}["), opset=opset)


def quotients(made: onnx.ModelProto, a: Array, b: Array) -> list[int]:
    session = onnxruntime.InferenceSession(guard_division(made).SerializeToString())
    (y,) = session.run(None, {"a": a, "b": b})
    return [int(value) for value in y]


@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("place", BODIES)
def test_the_least_integer_is_divided_by_minus_one(place: str, kind: str, opset: int) -> None:
    made, least = model(BODIES[place], kind, opset), np.iinfo(kind).min
    random = np.random.default_rng(0)
    a = np.array([least, least, least + 1, 0, 7, *random.integers(least, -least - 1, 40)], kind)
    b = np.array([-1, 1, -1, -1, -2, *random.choice([-7, -1, 1, 3], 40)], kind)

    assert divides_integers(made)
    exact = [
        abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1)
        for x, y in zip(a, b, strict=True)
    ]
    wrapped = [least if value == -least else value for value in exact]
    assert quotients(made, a, b) == wrapped


@pytest.mark.parametrize(
    "body", ["y = Add(a, b)", "one_more = Constant<value_ints=[3]>() y = Add(a, b)"]
)
def test_a_model_without_divisions_stays_as_it_is(body: str) -> None:
    made = model(body)

    assert not divides_integers(made)
    assert guard_division(made) == made


def test_divisions_of_floats_and_by_constants_stay_as_they_are() -> None:
    floats = model("y = Div(a, b)", "float")
    integers = parsed("(int64[n] a) => (int64[n] y) <int64[1] two = {2}> { y = Div(a, two) }")

    for made in (floats, integers):
        before = made.SerializeToString()
        assert not divides_integers(made)
        assert guard_division(made).SerializeToString() == before


def test_a_divisor_of_zero_is_refused_with_an_error() -> None:
    with pytest.raises(Exception, match="division by zero"):
        quotients(model(BODIES["in a branch"]), np.array([1]), np.array([0]))


def test_a_step_of_zero_is_refused_with_an_error() -> None:
    text = """(float[1,16,1] x, int64 step) => (float[a,b,c,d] y) <int64 length = {8}>
        { y = STFT<onesided=1>(x, step, , length) }"""
    made = guard_division(parsed(text))
    session = onnxruntime.InferenceSession(made.SerializeToString())
    x = np.ones((1, 16, 1), np.float32)

    (y,) = session.run(None, {"x": x, "step": np.array(4)})
    assert y.shape == (1, 3, 5, 2)
    with pytest.raises(Exception, match="Mod"):
        session.run(None, {"x": x, "step": np.array(0)})


@pytest.mark.parametrize("place", [0.5, -2, 1e30, np.inf, -np.inf, np.nan])
def test_places_of_deformable_kernels_may_be_any_number(place: float) -> None:
    text = """(float[1,1,4,4] x, float[1,2,4,4] o) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}>
        { y = DeformConv(x, w, o) }"""
    made = guard_division(parsed(text, opset=19))
    session = onnxruntime.InferenceSession(made.SerializeToString())
    x, offset = np.ones((1, 1, 4, 4), np.float32), np.zeros((1, 2, 4, 4), np.float32)
    offset[0, :, 1, 2] = place

    (y,) = session.run(None, {"x": x, "o": offset})

    assert y[0, 0, 1, 2] == (1 if place == 0.5 else 0)
    assert (np.delete(y.reshape(-1), 6) == 1).all()
