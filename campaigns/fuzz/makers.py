"""How to draw a node of each operator: operands that fit, attributes in their range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from campaigns.fuzz.graphs import BOOL, FLOAT, INT, Draft, Value

Maker = Callable[[Draft], bool]

_UNARY = (
    *("Abs", "Atan", "Asinh", "Ceil", "Cos", "Erf", "Exp", "Floor", "HardSwish", "Neg", "Relu"),
    *(
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Tanh",
        "Identity",
        "Mish",
    ),
    *("Elu", "LeakyRelu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu"),
    *("Mish", "IsNaN", "Shrink", "GlobalAveragePool", "GlobalMaxPool"),
)
_BINARY = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Pow",
    "Greater",
    "LessOrEqual",
    "PRelu",
)
_REDUCE = (
    *("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)


def _with(op_type: str, minimum: int = 0, maximum: int = 9) -> Maker:
    def make(d: Draft) -> bool:
        x = d.pick(rank=(minimum, maximum))
        return x is not None and d.emit(op_type, [x])

    return make


def _binary(op_type: str) -> Maker:
    def make(d: Draft) -> bool:
        a = d.pick()
        assert a is not None
        kind = d.one_of("value", "scalar", "channel", "last")
        if kind == "value":
            b = d.pick()
        elif kind == "scalar" or not a.shape:
            b = d.weight(low=0.5, high=2.0)
        elif kind == "channel" and len(a.shape) > 1:
            b = d.weight(a.shape[1], *[1] * (len(a.shape) - 2), low=0.5, high=2.0)
        else:
            b = d.weight(a.shape[-1], low=0.5, high=2.0)
        if op_type == "Pow":
            b = d.constant(np.array(d.one_of(2.0, 3.0), np.float32))
        swap = op_type not in ("Pow", "PRelu") and d.one_of(False, True)
        return d.emit(op_type, [b, a] if swap else [a, b])

    return make


def _reduce(op_type: str) -> Maker:
    def make(d: Draft) -> bool:
        x = d.pick(rank=(1, 5))
        if x is None:
            return False
        axes, keep = [d.axis(x)], d.integer(0, 1)
        operand = op_type == "ReduceSum" or d.opset >= 18
        if operand:
            return d.emit(op_type, [x, d.constant(np.array(axes))], keepdims=keep)
        return d.emit(op_type, [x], axes=axes, keepdims=keep)

    return make


def conv(d: Draft) -> bool:
    x = d.pick(rank=(3, 4))
    if x is None:
        return False
    channels, rank = x.shape[1], len(x.shape) - 2
    groups = d.one_of(1, channels)
    out = groups * d.integer(1, 3)
    kernel = [d.integer(1, 3) for _ in range(rank)]
    weight = d.weight(out, channels // groups, *kernel)
    operands = [x, weight, *([d.weight(out)] if d.one_of(True, False) else [])]
    where = d.one_of("pads", "VALID", "SAME_UPPER", "SAME_LOWER")
    if where == "pads":
        pads = [d.integer(0, 2) for _ in range(2 * rank)]
        placing: dict[str, Any] = {"pads": pads}
    else:
        placing = {"auto_pad": where}
    strides = [d.integer(1, 2) for _ in range(rank)]
    dilations = [1 if where.startswith("SAME") else d.integer(1, 2) for _ in range(rank)]
    shape: dict[str, Any] = {"strides": strides, "dilations": dilations}
    return d.emit("Conv", operands, group=groups, **shape, **placing)


def conv_transpose(d: Draft) -> bool:
    x = d.pick(rank=(3, 4))
    if x is None:
        return False
    rank = len(x.shape) - 2
    weight = d.weight(x.shape[1], d.integer(1, 3), *[d.integer(1, 3) for _ in range(rank)])
    strides = [d.integer(1, 2) for _ in range(rank)]
    pads = [d.integer(0, 1) for _ in range(2 * rank)]
    extra = [d.integer(0, s - 1) for s in strides]
    return d.emit("ConvTranspose", [x, weight], strides=strides, pads=pads, output_padding=extra)


def _pool(op_type: str) -> Maker:
    def make(d: Draft) -> bool:
        x = d.pick(rank=(3, 4))
        if x is None:
            return False
        rank = len(x.shape) - 2
        kernel = [d.integer(1, min(3, extent)) for extent in x.shape[2:]]
        pads = [d.integer(0, k - 1) for k in kernel] * 2
        strides = [d.integer(1, 2) for _ in range(rank)]
        more: dict[str, int] = {"ceil_mode": d.integer(0, 1)}
        if op_type == "AveragePool":
            more["count_include_pad"] = d.integer(0, 1)
        return d.emit(op_type, [x], kernel_shape=kernel, strides=strides, pads=pads, **more)

    return make


def batch_norm(d: Draft) -> bool:
    x = d.pick(rank=(2, 5))
    if x is None:
        return False
    c = x.shape[1]
    positive = d.weight(c, low=0.5, high=1.5)
    operands = [x, d.weight(c), d.weight(c), d.weight(c), positive]
    return d.emit("BatchNormalization", operands, epsilon=1e-3)


def instance_norm(d: Draft) -> bool:
    x = d.pick(rank=(3, 5))
    if x is None:
        return False
    return d.emit("InstanceNormalization", [x, d.weight(x.shape[1]), d.weight(x.shape[1])])


def layer_norm(d: Draft) -> bool:
    x = d.pick(rank=(2, 4))
    if x is None or d.opset < 17:
        return False
    weights = [d.weight(x.shape[-1]), d.weight(x.shape[-1])][: d.integer(1, 2)]
    return d.emit("LayerNormalization", [x, *weights], axis=-1)


def written_norm(d: Draft) -> bool:
    """x / sqrt(mean(x^2) + eps) * w in several nodes, as exporters write it."""
    x = d.pick(rank=(2, 4))
    if x is None or d.opset >= 18:
        return False
    steps = len(d.values)
    centred = d.one_of(True, False)
    if centred:
        if not d.emit("ReduceMean", [x], axes=[-1], keepdims=1) or not d.emit(
            "Sub", [x, d.values[-1]]
        ):
            return False
        x = d.values[-1]
    two, eps = d.constant(np.array(2.0, np.float32)), d.constant(np.array(1e-3, np.float32))
    d.emit("Pow", [x, two])
    d.emit("ReduceMean", [d.values[-1]], axes=[-1], keepdims=1)
    d.emit("Add", [d.values[-1], eps])
    d.emit("Sqrt", [d.values[-1]])
    d.emit("Div", [x, d.values[-1]])
    d.emit("Mul", [d.values[-1], d.weight(x.shape[-1])])
    d.emit("Add", [d.values[-1], d.weight(x.shape[-1])])
    return len(d.values) > steps


def written_activation(d: Draft) -> bool:
    """SiLU, hardswish and gelu in several nodes."""
    x = d.pick()
    assert x is not None
    kind = d.one_of("silu", "hardswish", "gelu")
    if kind == "silu":
        d.emit("Sigmoid", [x])
        return d.emit("Mul", [x, d.values[-1]])
    number = {n: d.constant(np.array(n, np.float32)) for n in (3.0, 0.0, 6.0, 1.0, 0.5)}
    if kind == "hardswish":
        d.emit("Add", [x, number[3.0]])
        d.emit("Clip", [d.values[-1], number[0.0], number[6.0]])
        d.emit("Mul", [x, d.values[-1]])
        return d.emit("Div", [d.values[-1], number[6.0]])
    d.emit("Div", [x, d.constant(np.array(math.sqrt(2), np.float32))])
    d.emit("Erf", [d.values[-1]])
    d.emit("Add", [d.values[-1], number[1.0]])
    d.emit("Mul", [x, d.values[-1]])
    return d.emit("Mul", [d.values[-1], number[0.5]])


def matmul(d: Draft) -> bool:
    a = d.pick(rank=(2, 4))
    if a is None:
        return False
    b = d.weight(a.shape[-1], d.integer(1, 5)) if d.one_of(True, False) else d.pick(rank=(2, 4))
    return b is not None and d.emit("MatMul", [a, b])


def gemm(d: Draft) -> bool:
    a = d.pick(rank=(2, 2))
    if a is None:
        return False
    flip_a, flip_b = d.integer(0, 1), d.integer(0, 1)
    inner, out = a.shape[0 if flip_a else 1], d.integer(1, 5)
    b = d.weight(*((out, inner) if flip_b else (inner, out)))
    c = [d.weight(out), d.weight(1), d.weight(a.shape[1 if flip_a else 0], out), None]
    bias = d.one_of(*c)
    alpha, beta = d.one_of(1.0, 0.5), d.one_of(1.0, 2.0)
    operands = [a, b] if bias is None else [a, b, bias]
    return d.emit("Gemm", operands, transA=flip_a, transB=flip_b, alpha=alpha, beta=beta)


def transpose(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    order = list(d.random.permutation(len(x.shape)))
    return d.emit("Transpose", [x], perm=[int(axis) for axis in order])


def reshape(d: Draft) -> bool:
    x = d.pick()
    assert x is not None
    count = math.prod(x.shape)
    part = d.one_of(*[n for n in range(1, count + 1) if count % n == 0][:12])
    shape = d.one_of(
        [-1], [part, -1], [-1, part], [count // part, part, 1], [0, -1][: len(x.shape)]
    )
    return d.emit("Reshape", [x, d.constant(np.array(shape))])


def flatten(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    return x is not None and d.emit("Flatten", [x], axis=d.axis(x))


def squeeze_unsqueeze(d: Draft) -> bool:
    x = d.pick(rank=(0, 4))
    assert x is not None
    ones = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    if ones and d.one_of(True, False):
        return d.emit("Squeeze", [x, d.constant(np.array([d.one_of(*ones)]))])
    return d.emit("Unsqueeze", [x, d.constant(np.array([d.integer(0, len(x.shape))]))])


def concat(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    same = [v for v in d.values if v.shape == x.shape and v.dtype == x.dtype]
    parts = [d.one_of(*same) for _ in range(d.integer(1, 3))]
    return d.emit("Concat", [x, *parts], axis=d.axis(x))


def split(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    axis = d.axis(x)
    extent = x.shape[axis]
    if extent < 2:
        return False
    first = d.integer(1, extent - 1)
    sizes = d.constant(np.array([first, extent - first]))
    return d.emit("Split", [x, sizes], outputs=2, axis=axis)


def slice_(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    axis = d.axis(x)
    bounds = [d.integer(-9, 9), d.one_of(d.integer(-9, 9), 1 << 60, -(1 << 60)), axis]
    step = d.one_of(1, 2, -1, -2)
    operands = [d.constant(np.array([number])) for number in (*bounds, step)]
    return d.emit("Slice", [x, *operands])


def pad(d: Draft) -> bool:
    x = d.pick(rank=(1, 4))
    if x is None:
        return False
    mode = d.one_of("constant", "reflect", "edge")
    most = [min(2, extent - 1) if mode == "reflect" else 2 for extent in x.shape]
    amounts = [d.integer(0, m) for m in (*most, *most)]
    operands = [x, d.constant(np.array(amounts))]
    if mode == "constant" and d.one_of(True, False):
        operands.append(d.constant(np.array(0.5, np.float32)))
    return d.emit("Pad", operands, mode=mode)


def padded_conv(d: Draft) -> bool:
    """A pad in front of what may take it in."""
    x = d.pick(rank=(4, 4))
    if x is None:
        return False
    amounts = d.one_of([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 2, 1, 0, 0, 2, 1], [0, 0, 1, 0, 0, 0, 2, 1])
    if not d.emit("Pad", [x, d.constant(np.array(amounts))]):
        return False
    padded = d.values[-1]
    if d.one_of(True, False):
        return d.emit("Conv", [padded, d.weight(2, padded.shape[1], 3, 3)], pads=[1, 1, 1, 1])
    include = d.integer(0, 1)
    kernel: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    return d.emit("AveragePool", [padded], count_include_pad=include, **kernel)


def gather(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    axis = d.axis(x)
    extent = x.shape[axis]
    shape = d.one_of((), (2,), (2, 2))
    indices = d.random.integers(-extent, extent, shape)
    return d.emit("Gather", [x, d.constant(np.array(indices, np.int64))], axis=axis)


def expand_tile(d: Draft) -> bool:
    x = d.pick(rank=(1, 4))
    if x is None:
        return False
    if d.one_of(True, False):
        shape = [extent if extent > 1 else d.integer(1, 3) for extent in x.shape]
        return d.emit("Expand", [x, d.constant(np.array([2, *shape]))])
    return d.emit("Tile", [x, d.constant(np.array([d.integer(1, 2) for _ in x.shape]))])


def softmax(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    return x is not None and d.emit(d.one_of("Softmax", "LogSoftmax"), [x], axis=d.axis(x))


def clip(d: Draft) -> bool:
    x = d.pick()
    assert x is not None
    low, high = (d.constant(np.array(v, np.float32)) for v in (-0.5, 0.75))
    return d.emit("Clip", d.one_of([x, low, high], [x, low], [x, None, high]))


def where(d: Draft) -> bool:
    condition, x, y = d.pick(BOOL), d.pick(), d.pick()
    return condition is not None and d.emit("Where", [condition, x, y])


def cast(d: Draft) -> bool:
    x = d.pick(d.one_of(FLOAT, BOOL, INT))
    return x is not None and d.emit("Cast", [x], to=d.one_of(FLOAT, INT))


def arg_extreme(d: Draft) -> bool:
    x = d.pick(rank=(1, 5))
    if x is None:
        return False
    return d.emit(d.one_of("ArgMax", "ArgMin"), [x], axis=d.axis(x), keepdims=d.integer(0, 1))


def cumsum(d: Draft) -> bool:
    x = d.pick(rank=(1, 4))
    if x is None:
        return False
    axis = d.constant(np.array(d.axis(x)))
    return d.emit("CumSum", [x, axis], exclusive=d.integer(0, 1), reverse=d.integer(0, 1))


def resize(d: Draft) -> bool:
    x = d.pick(rank=(4, 4))
    if x is None:
        return False
    mode = d.one_of("nearest", "linear", "cubic")
    forms = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    scales = [1.0, 1.0, d.one_of(2.0, 1.5, 0.5), d.one_of(2.0, 3.0)]
    operands: list[Value | None] = [x, None, d.constant(np.array(scales, np.float32))]
    rounding = d.one_of("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")
    form = d.one_of(*forms)
    return d.emit(
        "Resize", operands, mode=mode, coordinate_transformation_mode=form, nearest_mode=rounding
    )


def depth_to_space(d: Draft) -> bool:
    x = d.pick(rank=(4, 4))
    if x is None:
        return False
    if x.shape[1] % 4 == 0:
        return d.emit("DepthToSpace", [x], blocksize=2, mode=d.one_of("DCR", "CRD"))
    return d.emit("SpaceToDepth", [x], blocksize=2)


def recurrent(d: Draft) -> bool:
    x = d.pick(rank=(3, 3))
    if x is None:
        return False
    op_type, gates = d.one_of(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    direction = d.one_of("forward", "reverse", "bidirectional")
    directions, hidden = (2 if direction == "bidirectional" else 1), d.integer(1, 3)
    operands = [
        x,
        d.weight(directions, gates * hidden, x.shape[2]),
        d.weight(directions, gates * hidden, hidden),
        *([d.weight(directions, 2 * gates * hidden)] if d.one_of(True, False) else []),
    ]
    more = {"linear_before_reset": 1} if op_type == "GRU" else {}
    return d.emit(op_type, operands, hidden_size=hidden, direction=direction, **more)


def trilu(d: Draft) -> bool:
    x = d.pick(rank=(2, 4))
    if x is None or d.opset < 14:
        return False
    return d.emit("Trilu", [x, d.constant(np.array(d.integer(-2, 2)))], upper=d.integer(0, 1))


def topk(d: Draft) -> bool:
    x = d.pick(rank=(1, 3))
    if x is None:
        return False
    axis = d.axis(x)
    count = d.constant(np.array([d.integer(1, x.shape[axis])]))
    return d.emit("TopK", [x, count], outputs=2, axis=axis, largest=d.integer(0, 1))


def equal(d: Draft) -> bool:
    """Of numbers that rounding cannot tell apart."""
    x = d.pick()
    assert x is not None
    return d.emit("Sign", [x]) and d.emit(
        "Equal", [d.values[-1], d.constant(np.array(1.0, np.float32))]
    )


def of_positive(d: Draft) -> bool:
    """Functions that want positive numbers: NaN means another thing to every library."""
    x = d.pick()
    assert x is not None
    half = d.constant(np.array(0.5, np.float32))
    if not d.emit("Abs", [x]) or not d.emit("Add", [d.values[-1], half]):
        return False
    op_type = d.one_of("Sqrt", "Reciprocal", "Log", "Pow")
    if op_type == "Pow":
        power = d.constant(np.array(d.one_of(0.5, -1.0, 1.7), np.float32))
        return d.emit("Pow", [d.values[-1], power])
    return d.emit(op_type, [d.values[-1]])


MAKERS: dict[str, Maker] = {
    **{name: _with(name, 3 if name.startswith("Global") else 0, 5) for name in _UNARY},
    **{name: _binary(name) for name in _BINARY},
    **{name: _reduce(name) for name in _REDUCE},
    **{name: _pool(name) for name in ("MaxPool", "AveragePool")},
    **{
        make.__name__: make
        for make in (
            *(conv, conv_transpose, batch_norm, instance_norm, layer_norm, written_norm, matmul),
            *(written_activation, gemm, transpose, reshape, flatten, squeeze_unsqueeze, concat),
            *(split, slice_, pad, padded_conv, gather, expand_tile, softmax, clip, where, cast),
            *(
                arg_extreme,
                cumsum,
                resize,
                depth_to_space,
                recurrent,
                trilu,
                topk,
                equal,
                of_positive,
            ),
        )
    },
}
