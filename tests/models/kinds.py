"""Small models that ONNX Runtime runs, one for each kind that a server might refuse, with requests.

KINDS: name ──> Kind(model, requests)      ONNX Runtime on the same file is the oracle
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

Feed = Mapping[str, np.ndarray[Any, Any]]
Declared = Mapping[str, tuple[int, Sequence[int | str | None]]]

F, N, L, B = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
CONTRIBUTED = "com.microsoft"
node = helper.make_node


@dataclass(frozen=True, slots=True)
class Kind:
    """A model and requests that it answers."""

    model: bytes
    feeds: Sequence[Feed]
    is_random: bool = False  # only the shapes of its outputs can be compared
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # to register it with


def drawn(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def floats(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


def narrow(values: Any) -> np.ndarray[Any, Any]:
    """Integers of 32 bits."""
    return np.array(values, np.int32)


def _declared(tensors: Declared) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(name, dtype, shape)
        for name, (dtype, shape) in tensors.items()
    ]


def model(
    nodes: Sequence[NodeProto],
    inputs: Declared,
    outputs: Declared,
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> bytes:
    """A model; constants are arrays, or tensors of types that numpy lacks."""
    given = [
        value
        if isinstance(value, onnx.TensorProto)
        else numpy_helper.from_array(np.array(value), name)
        for name, value in (constants or {}).items()
    ]
    made = helper.make_graph(
        list(nodes),
        "kind",
        _declared(inputs),
        _declared(outputs),
        given,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIBUTED, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()


KINDS: dict[str, Callable[[], Kind]] = {}


def kind(make: Callable[[], Kind]) -> Callable[[], Kind]:
    KINDS[make.__name__.replace("_", " ").strip()] = make
    return make


# Lengths that follow the content.


@kind
def a_detector_that_finds_nothing() -> Kind:
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        node("Sigmoid", ["c"], ["s"]),
        node("Reshape", ["s", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("Slice", ["t", "i0", "i4", "i2"], ["boxes"]),
        node("Slice", ["f", "i4", "i5", "i1"], ["scores"]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["found"]),
        node("Gather", ["found", "columns"], ["at"], axis=1),
        node("GatherND", ["boxes", "at"], ["y"]),
    ]
    constants = {
        "w": drawn(0, 5, 3, 4, 4) * np.float32(0.2),
        "flat": [0, 5, -1],
        **{f"i{number}": [number] for number in (0, 1, 2, 4, 5)},
        "most": [50],
        "iou": floats([0.6]),
        "least": floats([0.5]),
        "columns": [0, 2],
    }
    made = model(nodes, {"x": (F, ["b", 3, 32, 32])}, {"y": (F, ["n", 4])}, constants)
    nothing = -50 * np.sign(drawn(1, 1, 3, 1, 1)) + np.zeros((1, 3, 32, 32), np.float32)
    return Kind(made, [{"x": x} for x in (drawn(2, 1, 3, 32, 32), nothing, drawn(3, 3, 3, 32, 32))])


@kind
def positions_of_what_is_not_zero() -> Kind:
    made = model([node("NonZero", ["x"], ["y"])], {"x": (F, ["n", 4])}, {"y": (L, [2, "k"])})
    large = np.ones((3000, 4), np.float32)  # more than there was room for
    return Kind(made, [{"x": x} for x in (drawn(0, 3, 4), large, np.zeros((2, 4), np.float32))])


@kind
def unique_values() -> Kind:
    made = model(
        [node("Unique", ["x"], ["y", "at", "back", "count"])],
        {"x": (L, ["n"])},
        {"y": (L, ["k"]), "at": (L, ["k"]), "back": (L, ["n"]), "count": (L, ["k"])},
    )
    return Kind(made, [{"x": np.array(x)} for x in ([3, 1, 3, 2], [7] * 9, [5])])


@kind
def rows_that_a_condition_keeps() -> Kind:
    made = model(
        [node("Compress", ["x", "keep"], ["y"], axis=0)],
        {"x": (F, ["n", 4]), "keep": (B, ["n"])},
        {"y": (F, ["k", 4])},
    )
    x = drawn(0, 3, 4)
    return Kind(made, [{"x": x, "keep": np.array(k)} for k in ([True, False, True], [False] * 3)])


def _loop(nodes: Sequence[NodeProto]) -> onnx.GraphProto:
    return helper.make_graph(
        [node("Identity", ["go"], ["on"]), *nodes],
        "body",
        [
            helper.make_tensor_value_info("i", L, []),
            helper.make_tensor_value_info("go", B, []),
            helper.make_tensor_value_info("v", F, None),
        ],
        [
            helper.make_tensor_value_info("on", B, []),
            helper.make_tensor_value_info("u", F, None),
            helper.make_tensor_value_info("s", F, None),
        ],
    )


@kind
def a_loop_with_turns_from_an_input() -> Kind:
    body = _loop([node("Add", ["v", "one"], ["u"]), node("Mul", ["v", "v"], ["s"])])
    made = model(
        [node("Loop", ["turns", "", "x"], ["last", "y"], body=body)],
        {"x": (F, ["n"]), "turns": (L, [])},
        {"last": (F, ["n"]), "y": (F, ["k", "n"])},
        {"one": np.float32(1)},
    )
    return Kind(made, [{"x": drawn(0, 3), "turns": np.array(t)} for t in (4, 1, 0)])


@kind
def a_loop_that_grows_what_it_carries() -> Kind:
    body = _loop([node("Concat", ["v", "one"], ["u"], axis=0), node("Identity", ["one"], ["s"])])
    made = model(
        [node("Loop", ["turns", "", "x"], ["y", "ones"], body=body)],
        {"x": (F, ["n"]), "turns": (L, [])},
        {"y": (F, ["k"])},
        {"one": floats([1])},
    )
    return Kind(made, [{"x": drawn(0, 3), "turns": np.array(t)} for t in (4, 1, 0)])


@kind
def a_scan() -> Kind:
    body = helper.make_graph(
        [node("Add", ["s", "x"], ["t"]), node("Identity", ["t"], ["y"])],
        "body",
        [helper.make_tensor_value_info(name, F, [2]) for name in "sx"],
        [helper.make_tensor_value_info(name, F, [2]) for name in "ty"],
    )
    made = model(
        [node("Scan", ["start", "x"], ["last", "y"], body=body, num_scan_inputs=1)],
        {"x": (F, ["n", 2])},
        {"last": (F, [2]), "y": (F, ["n", 2])},
        {"start": np.zeros(2, np.float32)},
    )
    return Kind(made, [{"x": drawn(0, n, 2)} for n in (5, 1)])


@kind
def a_branch_with_another_rank() -> Kind:
    def arm(made: NodeProto) -> onnx.GraphProto:
        return helper.make_graph([made], "arm", [], [helper.make_tensor_value_info("r", F, None)])

    made = model(
        [
            node("ReduceMax", ["x"], ["most"], keepdims=0),
            node("Greater", ["most", "one"], ["bright"]),
            node(
                "If",
                ["bright"],
                ["y"],
                then_branch=arm(node("ReduceSum", ["x"], ["r"], keepdims=0)),
                else_branch=arm(node("Neg", ["x"], ["r"])),
            ),
        ],
        {"x": (F, ["n", 4])},
        {"y": (F, None)},  # type: ignore[dict-item]
        {"one": np.float32(1)},
    )
    return Kind(made, [{"x": np.full((2, 4), x, np.float32)} for x in (0.5, 3)])


# Nothing, in and out.


@kind
def a_decoder_with_an_empty_cache() -> Kind:
    made = model(
        [
            node("Concat", ["past", "x"], ["present"], axis=2),
            node("Transpose", ["present"], ["t"], perm=[0, 1, 3, 2]),
            node("MatMul", ["x", "t"], ["s"]),
            node("Softmax", ["s"], ["p"]),
            node("MatMul", ["p", "present"], ["y"]),
        ],
        {"past": (F, ["b", 2, "past", 4]), "x": (F, ["b", 2, "seq", 4])},
        {"y": (F, ["b", 2, "seq", 4]), "present": (F, ["b", 2, "total", 4])},
    )
    pasts = (np.zeros((1, 2, 0, 4), np.float32), drawn(1, 1, 2, 3, 4))
    feeds = [{"past": past, "x": drawn(0, 1, 2, 5, 4)} for past in pasts]
    two = {"past": np.zeros((2, 2, 0, 4), np.float32), "x": drawn(2, 2, 2, 1, 4)}
    shapes = {"past": (1, 2, 3, 4), "x": (1, 2, 1, 4)}
    return Kind(made, [*feeds, two], shapes=shapes)


@kind
def no_rows() -> Kind:
    made = model(
        [node("Gemm", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])],
        {"x": (F, ["b", 4])},
        {"y": (F, ["b", 3])},
        {"w": drawn(0, 4, 3)},
    )
    return Kind(made, [{"x": drawn(1, rows, 4)} for rows in (0, 2)])


@kind
def no_rows_of_integers() -> Kind:
    made = model(
        [node("Gather", ["w", "x"], ["y"])],
        {"x": (L, ["b", 4])},
        {"y": (F, ["b", 4, 3])},
        {"w": drawn(0, 9, 3)},
    )
    return Kind(made, [{"x": np.zeros((rows, 4), np.int64)} for rows in (0, 2)])


@kind
def a_reshape_of_nothing() -> Kind:
    made = model(
        [node("Reshape", ["x", "shape"], ["r"], allowzero=1), node("Relu", ["r"], ["y"])],
        {"x": (F, ["n", "m"])},
        {"y": (F, [None, None])},
        {"shape": [-1, 2]},
    )
    return Kind(made, [{"x": drawn(0, *shape)} for shape in ((3, 4), (3, 0), (0, 4))])


@kind
def a_choice_between_nothings() -> Kind:
    made = model(
        [node("Where", ["c", "x", "z"], ["w"]), node("ReduceSum", ["w"], ["y"], keepdims=0)],
        {"c": (B, ["n", "m"]), "x": (F, ["n", "m"])},
        {"y": (F, [])},
        {"z": np.float32(2)},
    )
    shapes = ((2, 3), (2, 0))
    return Kind(made, [{"c": drawn(0, *s) > 0, "x": drawn(1, *s)} for s in shapes])


@kind
def regions_of_an_image() -> Kind:
    made = model(
        [node("RoiAlign", ["x", "rois", "batch"], ["y"], output_height=2, output_width=2)],
        {"x": (F, [1, 3, 8, 8]), "rois": (F, ["n", 4]), "batch": (L, ["n"])},
        {"y": (F, ["n", 3, 2, 2])},
    )
    regions = floats([[0, 0, 4, 4], [1, 1, 6, 7]])
    return Kind(
        made,
        [
            {"x": drawn(0, 1, 3, 8, 8), "rois": regions[:n], "batch": np.zeros(n, np.int64)}
            for n in (2, 1, 0)
        ],
    )


@kind
def an_input_of_declared_length_zero() -> Kind:
    made = model(
        [node("Concat", ["x", "none"], ["y"], axis=1)],
        {"x": (F, ["n", 2])},
        {"y": (F, ["n", 2])},
        {"none": np.zeros((1, 0), np.float32)},
    )
    return Kind(made, [{"x": drawn(0, 1, 2)}])


# Sizes from inputs.


@kind
def the_largest_k() -> Kind:
    made = model(
        [node("TopK", ["x", "k"], ["y", "at"], axis=1)],
        {"x": (F, ["n", 6]), "k": (L, [1])},
        {"y": (F, ["n", "k"]), "at": (L, ["n", "k"])},
    )
    return Kind(made, [{"x": drawn(0, 2, 6), "k": np.array([k])} for k in (3, 1, 6, 0)])


@kind
def a_size_to_resize_to() -> Kind:
    made = model(
        [node("Resize", ["x", "", "", "size"], ["y"], mode="linear")],
        {"x": (F, [1, 2, 4, 4]), "size": (L, [4])},
        {"y": (F, [None] * 4)},
    )
    sizes = ([1, 2, 8, 8], [1, 2, 3, 5])
    return Kind(made, [{"x": drawn(0, 1, 2, 4, 4), "size": np.array(s)} for s in sizes])


@kind
def sizes_to_split_into() -> Kind:
    made = model(
        [node("Split", ["x", "sizes"], ["a", "b"], axis=1)],
        {"x": (F, ["n", 6]), "sizes": (L, [2])},
        {"a": (F, ["n", None]), "b": (F, ["n", None])},
    )
    return Kind(made, [{"x": drawn(0, 2, 6), "sizes": np.array(s)} for s in ([2, 4], [0, 6])])


@kind
def a_shape_to_reshape_to() -> Kind:
    made = model(
        [node("Reshape", ["x", "shape"], ["y"])],
        {"x": (F, ["n", 6]), "shape": (L, [2])},
        {"y": (F, [None, None])},
    )
    return Kind(made, [{"x": drawn(0, 2, 6), "shape": np.array(s)} for s in ([4, 3], [-1, 2])])


@kind
def a_range_to_an_input() -> Kind:
    made = model(
        [node("Range", ["zero", "n", "one"], ["r"]), node("Mul", ["r", "r"], ["y"])],
        {"n": (L, [])},
        {"y": (L, ["k"])},
        {"zero": 0, "one": 1},
    )
    return Kind(made, [{"n": np.array(n)} for n in (5, 0)])


@kind
def pads_from_an_input() -> Kind:
    made = model(
        [node("Pad", ["x", "pads"], ["y"])],
        {"x": (F, ["n", 3]), "pads": (L, [4])},
        {"y": (F, [None, None])},
    )
    return Kind(made, [{"x": drawn(0, 2, 3), "pads": np.array(p)} for p in ([0, 1, 1, 0], [0] * 4)])


@kind
def a_slice_between_inputs() -> Kind:
    made = model(
        [node("Slice", ["x", "begin", "end"], ["y"])],
        {"x": (F, ["n", 3]), "begin": (L, [1]), "end": (L, [1])},
        {"y": (F, [None, 3])},
    )
    ends = ((0, 2), (1, 1))
    return Kind(
        made, [{"x": drawn(0, 4, 3), "begin": np.array([b]), "end": np.array([e])} for b, e in ends]
    )


# Content that not every value is.


@kind
def a_remainder_by_an_input() -> Kind:
    made = model(
        [node("Mod", ["x", "d"], ["y"])], {"x": (L, ["n"]), "d": (L, ["n"])}, {"y": (L, ["n"])}
    )
    return Kind(made, [{"x": np.array([7, -7, 5]), "d": np.array([3, 3, -2])}])


@kind
def a_quotient_by_an_input() -> Kind:
    made = model(
        [node("Sub", ["d", "one"], ["e"]), node("Div", ["x", "e"], ["y"])],
        {"x": (N, ["n"]), "d": (N, ["n"])},
        {"y": (N, ["n"])},
        {"one": np.int32(1)},
    )
    return Kind(made, [{"x": narrow([7, -7, 5]), "d": narrow([4, 3, -2])}])


@kind
def a_decoder_with_lengths_as_inputs() -> Kind:
    heads, few, size = 4, 2, 16
    made = model(
        [
            node(
                "GroupQueryAttention",
                ["q", "k", "v", "pk", "pv", "lengths", "total"],
                ["y", "k2", "v2"],
                domain=CONTRIBUTED,
                num_heads=heads,
                kv_num_heads=few,
            )
        ],
        {
            "q": (F, ["b", "s", heads * size]),
            **{name: (F, ["b", "s", few * size]) for name in "kv"},
            **{name: (F, ["b", few, "p", size]) for name in ("pk", "pv")},
            "lengths": (N, ["b"]),
            "total": (N, [1]),
        },
        {
            "y": (F, ["b", "s", heads * size]),
            **{name: (F, ["b", few, "t", size]) for name in ("k2", "v2")},
        },
    )
    feeds = []
    for past in (3, 5):
        shapes: dict[str, tuple[int, ...]] = {"q": (1, 1, 64), "k": (1, 1, 32), "v": (1, 1, 32)}
        shapes |= dict.fromkeys(("pk", "pv"), (1, few, past, size))
        floats = {name: drawn(past, *shape) for name, shape in shapes.items()}
        feeds.append({**floats, "lengths": narrow([past]), "total": narrow([past + 1])})
    return Kind(made, feeds, shapes={"q": (1, 1, 64), "pk": (1, few, 3, size)})


@kind
def a_length_of_a_sequence() -> Kind:
    made = model(
        [node("LSTM", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=4)],
        {"x": (F, [5, "b", 3]), "lengths": (N, ["b"])},
        {"y": (F, [5, 1, "b", 4])},
        {"w": drawn(0, 1, 16, 3), "r": drawn(1, 1, 16, 4)},
    )
    return Kind(made, [{"x": drawn(2, 5, 2, 3), "lengths": narrow([5, 2])}])


@kind
def noise_like_an_input() -> Kind:
    made = model(
        [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])],
        {"x": (F, ["n", 4])},
        {"y": (F, ["n", 4])},
    )
    return Kind(made, [{"x": drawn(0, 2, 4)}], is_random=True)


@kind
def draws() -> Kind:
    made = model(
        [node("Bernoulli", ["x"], ["y"]), node("Multinomial", ["x"], ["z"], sample_size=3)],
        {"x": (F, ["n", 4])},
        {"y": (F, ["n", 4]), "z": (N, ["n", 3])},
    )
    return Kind(made, [{"x": np.full((2, 4), 0.5, np.float32)}], is_random=True)


@kind
def dropout_as_in_training() -> Kind:
    made = model(
        [node("Dropout", ["x", "ratio", "training"], ["y"])],
        {"x": (F, ["n", 4])},
        {"y": (F, ["n", 4])},
        {"ratio": np.float32(0.5), "training": True},
    )
    return Kind(made, [{"x": drawn(0, 2, 4)}], is_random=True)


# Windows beyond the data.


@kind
def an_average_with_a_kernel_larger_than_the_image() -> Kind:
    made = model(
        [
            node(
                "AveragePool",
                ["x"],
                ["y"],
                kernel_shape=[1280] * 2,
                strides=[1280] * 2,
                ceil_mode=1,
            )
        ],
        {"x": (F, ["b", 8, 7, 7])},
        {"y": (F, ["b", 8, 1, 1])},
    )
    return Kind(made, [{"x": drawn(0, 2, 8, 7, 7)}])


def _pool(op_type: str, **attributes: Any) -> Kind:
    made = model(
        [node(op_type, ["x"], ["y"], **attributes)],
        {"x": (F, ["b", 2, 9, 9])},
        {"y": (F, ["b", 2, None, None])},
        opset=19,
    )
    return Kind(made, [{"x": drawn(0, 2, 2, 9, 9)}])


POOLS: Mapping[str, Mapping[str, Any]] = {
    "an average that counts its padding": {
        "op_type": "AveragePool",
        "kernel_shape": [3, 3],
        "pads": [1, 1, 2, 2],
        "count_include_pad": 1,
        "ceil_mode": 1,
        "strides": [2, 2],
    },
    "a maximum far apart": {
        "op_type": "MaxPool",
        "kernel_shape": [2, 2],
        "dilations": [5, 5],
        "ceil_mode": 1,
        "strides": [3, 3],
    },
    "a maximum of the same size": {
        "op_type": "MaxPool",
        "kernel_shape": [4, 4],
        "auto_pad": "SAME_UPPER",
        "strides": [2, 2],
    },
    "a norm": {
        "op_type": "LpPool",
        "kernel_shape": [8, 8],
        "p": 3,
        "pads": [3, 3, 3, 3],
        "strides": [2, 2],
    },
}
for _name, _attributes in POOLS.items():
    KINDS[_name] = lambda attributes=_attributes: _pool(**attributes)  # type: ignore[misc]


@kind
def a_transposed_convolution_of_a_stated_size() -> Kind:
    made = model(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2], output_shape=[7, 7])],
        {"x": (F, ["b", 2, 3, 3])},
        {"y": (F, ["b", 1, None, None])},
        {"w": drawn(0, 2, 1, 3, 3)},
    )
    return Kind(made, [{"x": drawn(1, 2, 2, 3, 3)}])


@kind
def a_transposed_convolution_of_the_same_size() -> Kind:
    made = model(
        [
            node(
                "ConvTranspose",
                ["x", "w"],
                ["y"],
                strides=[2, 2],
                auto_pad="SAME_UPPER",
                output_padding=[1, 1],
            )
        ],
        {"x": (F, ["b", 2, 3, 3])},
        {"y": (F, ["b", 1, None, None])},
        {"w": drawn(0, 2, 1, 3, 3)},
    )
    return Kind(made, [{"x": drawn(1, 2, 2, 3, 3)}])


# Types and operators of ONNX Runtime's own.


@kind
def weights_of_four_bits_in_blocks() -> Kind:
    values = np.random.default_rng(0).integers(0, 15, (8, 4))
    made = model(
        [
            node("DequantizeLinear", ["q", "scale", "zero"], ["w"], axis=0, block_size=4),
            node("MatMul", ["x", "w"], ["y"]),
        ],
        {"x": (F, ["b", 8])},
        {"y": (F, ["b", 4])},
        {
            "q": helper.make_tensor("q", TensorProto.UINT4, [8, 4], values.ravel()),
            "scale": np.abs(drawn(1, 2, 4)),
            "zero": helper.make_tensor("zero", TensorProto.UINT4, [2, 4], [8] * 8),
        },
        opset=21,
    )
    return Kind(made, [{"x": drawn(2, 3, 8)}])


@kind
def signed_weights_of_four_bits() -> Kind:
    values = np.random.default_rng(0).integers(-8, 7, (8, 4))
    made = model(
        [
            node("DequantizeLinear", ["q", "scale"], ["w"], axis=1),
            node("MatMul", ["x", "w"], ["y"]),
        ],
        {"x": (F, ["b", 8])},
        {"y": (F, ["b", 4])},
        {
            "q": helper.make_tensor("q", TensorProto.INT4, [8, 4], values.ravel()),
            "scale": np.abs(drawn(1, 4)),
        },
        opset=21,
    )
    return Kind(made, [{"x": drawn(2, 3, 8)}])


@kind
def a_product_of_four_bits() -> Kind:
    rng = np.random.default_rng(0)
    made = model(
        [
            node(
                "MatMulNBits",
                ["x", "q", "scale"],
                ["y"],
                domain=CONTRIBUTED,
                K=32,
                N=4,
                bits=4,
                block_size=32,
            )
        ],
        {"x": (F, ["b", 32])},
        {"y": (F, ["b", 4])},
        {
            "q": rng.integers(0, 255, (4, 1, 16)).astype(np.uint8),
            "scale": np.abs(drawn(1, 4)),
        },
    )
    return Kind(made, [{"x": drawn(2, 3, 32)}])


@kind
def a_file_that_onnx_runtime_optimised() -> Kind:
    import tempfile
    from pathlib import Path

    import onnxruntime

    plain = model(
        [
            node("Conv", ["x", "a"], ["c"], pads=[1] * 4),
            node("Relu", ["c"], ["r"]),
            node("Conv", ["r", "b"], ["y"], pads=[1] * 4),
        ],
        {"x": (F, ["n", 3, 16, 16])},
        {"y": (F, ["n", 16, 16, 16])},
        {"a": drawn(0, 16, 3, 3, 3), "b": drawn(1, 16, 16, 3, 3)},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(plain, options)
        return Kind(path.read_bytes(), [{"x": drawn(2, 2, 3, 16, 16)}])
