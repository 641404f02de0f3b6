"""Files an attacker, or an unlucky user, might upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.models.graphs import from_x, graph, model, own_function, tensors

HUGE = 1 << 38  # elements: a terabyte of floats


def of(body: str, **constants: Any) -> bytes:
    return from_x(body, **constants).SerializeToString()


def with_weight(**fields: Any) -> bytes:
    """``x + w``, where the file says of ``w`` what it likes."""
    made = from_x("y = Add(x, w)")
    made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, **fields)
    return made.SerializeToString()


def outside(location: str) -> TensorProto:
    """A tensor whose data lies in another file."""
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
    node = helper.make_node("Constant", [], ["c"], value=outside("/etc/passwd"))
    branch = graph([node], [], tensors(c=[4]))
    nodes = [
        helper.make_node("If", ["yes"], ["b"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["x", "b"], ["y"]),
    ]
    return model(nodes, {"yes": np.array(True)}).SerializeToString()


def unsupported() -> bytes:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="first"),
        helper.make_node("Explode", ["a"], ["b"], name="second", domain="own"),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    return model(nodes).SerializeToString()


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
    leaf = [helper.make_node("Relu", ["x"], ["r"])]
    branch = leaves = graph(leaf, [], tensors(r=None))
    for _ in range(depth):
        node = helper.make_node("If", ["yes"], ["r"], then_branch=branch, else_branch=leaves)
        branch = graph([node], [], tensors(r=None))
    node = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    return model([node], {"yes": np.array(True)}).SerializeToString()


def doubling_functions(levels: int) -> bytes:
    """Each function calls the next one twice: 2^levels nodes in two kilobytes."""
    functions = []
    for level in range(levels):
        called = f"f{level + 1}" if level + 1 < levels else "Relu"
        domain = "own" if level + 1 < levels else ""
        nodes = [
            helper.make_node(called, ["a"], ["b"], domain=domain),
            helper.make_node(called, ["b"], ["c"], domain=domain),
        ]
        functions.append(own_function(f"f{level}", "a", "c", nodes))
    call = helper.make_node("f0", ["x"], ["y"], domain="own")
    return model([call], functions=functions).SerializeToString()


def recursive_function() -> bytes:
    nodes = [helper.make_node("f", ["a"], ["b"], domain="own")]
    function = own_function("f", "a", "b", nodes)
    call = helper.make_node("f", ["x"], ["y"], domain="own")
    return model([call], functions=[function]).SerializeToString()


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


def recursive_pair() -> bytes:
    """Two functions that call each other."""
    functions = [
        own_function(name, "a", "b", [helper.make_node(called, ["a"], ["b"], domain="own")])
        for name, called in (("f", "g"), ("g", "f"))
    ]
    call = helper.make_node("f", ["x"], ["y"], domain="own")
    return model([call], functions=functions).SerializeToString()


def loop(reads: str, condition: str = "on = Identity(go)", makes: str = "y") -> str:
    """A loop over ``v`` as text; ``condition`` makes ``on`` from ``i``, ``go`` and ``v``."""
    return f"""{makes} = Loop<body = turn (int64 i, bool go, float[] v) => (bool on, float[] w)
    {{ {condition}  w = Relu(v) }}>({reads})"""


def endless_loop() -> bytes:
    return of(loop("trips, , x"), trips=1 << 62)


def endless_range(limit: float, step: float) -> bytes:
    """A Range of constants, which an import would fold, that nothing ends."""
    numbers = {"start": 0.0, "limit": limit, "step": step}
    return of(
        "r = Range(start, limit, step)  y = Add(x, r)",
        **{name: np.float32(value) for name, value in numbers.items()},
    )


def slow() -> bytes:
    """A legal model that keeps a core busy for minutes: large matrix products in a chain."""
    weight = np.eye(4096, dtype=np.float32)
    values = ["wide", *(f"v{i}" for i in range(400))]
    nodes = [helper.make_node("Expand", ["x", "rows"], ["wide"])]
    nodes += [helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(values)]
    nodes.append(helper.make_node("Relu", [values[-1]], ["y"]))
    constants = {"w": weight, "rows": np.array([2048, 4096])}
    return model(nodes, constants, shape=["n", 1]).SerializeToString()


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
    "recursive function": (recursive_function, "call themselves"),
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
    "functions that call each other": (recursive_pair, "call themselves"),
    "negative dims": (lambda: with_weight(dims=[-1, -4], raw_data=b"1" * 16), "negative extent"),
    "Loop of 2^62": (endless_loop, "Loop"),
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
