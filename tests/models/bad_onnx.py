"""Files an attacker, or an unlucky user, might upload."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.models.graphs import from_x, own_function

HUGE = 1 << 38  # elements: a terabyte of floats


def of(body: str, **constants: Any) -> bytes:
    return from_x(body, **constants).SerializeToString()


def with_weight(**fields: Any) -> bytes:
    """``x + w``, where the file says of ``w`` what it likes."""
    made = from_x("y = Add(x, w)")
    made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, **fields)
    return made.SerializeToString()


def outside(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def external_data(location: str) -> bytes:
    made = from_x("y = Add(x, w)")
    made.graph.initializer.append(outside(location))
    return made.SerializeToString()


def hidden_external_data() -> bytes:
    """External data in a Constant node of a branch."""
    nodes = """{ c = Constant<value = float[4] w = ["location": "/etc/passwd"]>() }"""
    branches = f"""then_branch = yes () => (float[4] c) {nodes},
    else_branch = no () => (float[4] c) {nodes}"""
    return of(f"b = If<{branches}>(yes)  y = Add(x, b)", yes=True)


def unsupported() -> bytes:
    return of("a = Frobnicate(x)  b = own.Explode(a)  y = Relu(b)")


def cycle() -> bytes:
    return of("a = Add(x, b)  b = Relu(a)  y = Relu(b)")


def _field(number: int, payload: bytes) -> bytes:
    length, size = len(payload), b""
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + payload


def thousand_ifs() -> bytes:
    """Deeper than a protobuf parser goes; written by hand because onnx cannot."""
    body = b""
    for _ in range(1000):
        attribute = _field(1, b"then_branch") + _field(6, body) + b"\xa0\x01\x05"
        body = _field(1, _field(4, b"If") + _field(5, attribute))
    return b"\x08\x08" + _field(7, body)


def nested_ifs(depth: int) -> bytes:
    """Within what protobuf takes, beyond what any real model has."""

    def choice(makes: str, nodes: str) -> str:
        return f"""{makes} = If<then_branch = deep () => (float[] r) {{ {nodes} }},
        else_branch = leaf () => (float[] r) {{ r = Relu(x) }}>(yes)"""

    nodes = "r = Relu(x)"
    for _ in range(depth):
        nodes = choice("r", nodes)
    return of(choice("y", nodes), yes=True)


def doubling_functions(levels: int) -> bytes:
    """Each function calls the next one twice: 2^levels nodes in two kilobytes."""
    called = [*(f"own.f{level}" for level in range(1, levels)), "Relu"]
    functions = [
        own_function(f"f{level} (a) => (c)", f"b = {next_one}(a)  c = {next_one}(b)")
        for level, next_one in enumerate(called)
    ]
    return of("y = own.f0(x)", functions="".join(functions))


def recursive(*names: str) -> bytes:
    """Functions of which each calls the next one, the last one the first."""
    functions = [
        own_function(f"{name} (a) => (b)", f"b = own.{called}(a)")
        for name, called in zip(names, (*names[1:], names[0]), strict=True)
    ]
    return of(f"y = own.{names[0]}(x)", functions="".join(functions))


def huge_range() -> bytes:
    bounds = {"start": 0.0, "limit": float(HUGE), "delta": 1.0}
    return of(
        "r = Range(start, limit, delta)  s = ReduceSum<keepdims=0>(r)  y = Add(x, s)",
        **{name: np.float32(value) for name, value in bounds.items()},
    )


def twice(what: str) -> bytes:
    """One name for two nodes' results, two initialisers or two inputs."""
    made = from_x("y = Add(x, w)", w=np.ones(4, np.float32))
    if what == "value":
        made.graph.node.append(made.graph.node[0])
    elif what == "weight":
        made.graph.initializer.append(made.graph.initializer[0])
    else:
        made.graph.input.append(made.graph.input[0])
    return made.SerializeToString()


def loop(reads: str, condition: str = "on = Identity(go)", makes: str = "y") -> str:
    """A loop over ``v`` as text; ``condition`` makes ``on`` from ``i``, ``go`` and ``v``."""
    return f"""{makes} = Loop<body = turn (int64 i, bool go, float[] v) => (bool on, float[] w)
    {{ {condition}  w = Relu(v) }}>({reads})"""


def endless_range(limit: float, step: float) -> bytes:
    """A Range of constants, which an import would fold, that nothing ends."""
    numbers = {"start": 0.0, "limit": limit, "step": step}
    return of(
        "r = Range(start, limit, step)  y = Add(x, r)",
        **{name: np.float32(value) for name, value in numbers.items()},
    )


def slow() -> bytes:
    """A legal model that keeps a core busy for minutes: large matrix products in a chain."""
    values = ["wide", *(f"v{i}" for i in range(400))]
    products = " ".join(f"{b} = MatMul({a}, w)" for a, b in pairwise(values))
    made = from_x(
        f"wide = Expand(x, rows)  {products}  y = Relu({values[-1]})",
        "n, 1",
        w=np.eye(4096, dtype=np.float32),
        rows=[2048, 4096],
    )
    return made.SerializeToString()


SQUEEZED = b"\x1f\x8b\x08" + b"\0" * 40

BAD: Mapping[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "empty"),
    "text": (lambda: b"hello, I am a model", "not an ONNX model"),
    "another protobuf": (lambda: b"\x08\x07", "not an ONNX model"),
    "zip": (lambda: b"PK\x03\x04" + b"\0" * 50, "zip archive"),
    "gzip": (lambda: SQUEEZED, "gzip"),
    "truncated": (lambda: cycle()[:-7], "truncated"),
    "a thousand nested Ifs": (thousand_ifs, "nested absurdly deep"),
    "twenty nested Ifs": (lambda: nested_ifs(20), "nested more than 16 deep"),
    "data in a parent folder": (lambda: external_data("../../w.bin"), "leaves the upload"),
    "data at an absolute path": (lambda: external_data("/etc/passwd"), "leaves the upload"),
    "data at a windows path": (lambda: external_data("C:\\w.bin"), "leaves the upload"),
    "data in a neighbour": (lambda: external_data("w.bin"), "not part of the upload"),
    "hidden external data": (hidden_external_data, "leaves the upload"),
    "unsupported operators": (unsupported, "for 3 reason"),
    "cycle": (cycle, "cycle through"),
    "thirty doubling functions": (lambda: doubling_functions(30), "more than 200000 nodes"),
    "recursive function": (lambda: recursive("f"), "call themselves"),
    "ConstantOfShape of 2^38": (
        lambda: of(
            "c = ConstantOfShape(shape)  s = ReduceSum<keepdims=0>(c)  y = Add(x, s)", shape=[HUGE]
        ),
        "bytes",
    ),
    "Expand to 2^38": (
        lambda: of(
            "e = Expand(x, shape)  y = ReduceSum<keepdims=0>(e)", shape=[1 << 18, 1 << 18, 1, 4]
        ),
        "bytes",
    ),
    "Tile to 2^40": (lambda: of("y = Tile(x, repeats)", repeats=[1 << 20, 1 << 18]), "bytes"),
    "Pad to 2^40": (lambda: of("y = Pad(x, pads)", pads=[0, 0, 1 << 20, 1 << 20]), "bytes"),
    "Range of 2^38": (huge_range, "bytes"),
    "lying dims": (
        lambda: with_weight(dims=[1 << 40], raw_data=b"1234"),
        "needs 4398046511104 bytes",
    ),
    "overflowing dims": (  # their product is 0 in 64 bits
        lambda: with_weight(dims=[1 << 32, 1 << 32], raw_data=b""),
        "needs 73786976294838206464 bytes",
    ),
    "a value named twice": (lambda: twice("value"), "produced twice"),
    "a weight named twice": (lambda: twice("weight"), "defined twice"),
    "an input named twice": (lambda: twice("input"), "two inputs"),
    "functions that call each other": (lambda: recursive("f", "g"), "call themselves"),
    "negative dims": (lambda: with_weight(dims=[-1, -4], raw_data=b"1" * 16), "negative extent"),
    "a Range in steps of 0": (lambda: endless_range(4, 0), "in steps of 0"),
    "a Range without an end": (lambda: endless_range(np.inf, 1), "from 0.0 to inf"),
    "a constant index beyond its weight": (
        lambda: of(
            "picked = Gather(w, at)  y = Add(x, picked)", w=np.eye(4, dtype=np.float32), at=[7]
        ),
        "the index 7; it takes 0 to 3",
    ),
    "a value that nothing produces": (lambda: of("y = Add(x, ghost)"), "ghost"),
}
