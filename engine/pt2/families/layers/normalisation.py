"""Normalisations and softmax."""

from __future__ import annotations

import torch

from braid.engine.lowering.builder import Builder
from braid.engine.onnx.node import UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import Use
from braid.engine.pt2.lowering_table import lowers


def _or_constant(use: Use, to: Builder, name: str, channels: int, value: float) -> str:
    """A weight, or a constant vector where it is absent."""
    if use.has(name):
        return use.tensor(name)
    use.without_effect(name)
    dtype = torch_dtype(use.dtype_of("input"))
    return to.add_constant(f"{use.label}/{name}", torch.full((channels,), value, dtype=dtype))


def _channels(use: Use) -> int:
    channels = use.shape_of("input")[1]
    if not isinstance(channels, int):
        raise UnsupportedUse("an open number of channels")
    return channels


@lowers("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(use: Use, to: Builder) -> None:
    """Normalise by stored mean and variance."""
    use.without_effect("momentum", "cudnn_enabled")
    use.require("training", False)
    if not use.has("running_mean"):
        raise UnsupportedUse("statistics of the batch itself")
    weight = _or_constant(use, to, "weight", _channels(use), 1.0)
    bias = _or_constant(use, to, "bias", _channels(use), 0.0)
    operands = [use.tensor("input"), weight, bias]
    operands += [use.tensor("running_mean"), use.tensor("running_var")]
    to.emit("aten.batch_norm", operands, use.output, eps=float(use.number("eps")))


@lowers("aten.layer_norm.default", "aten.native_layer_norm.default")
def layer_norm(use: Use, to: Builder) -> None:
    """Normalise over the last axes."""
    use.without_effect("cudnn_enable")
    axis = -len(use.integers("normalized_shape"))
    operands = [use.tensor("input"), use.maybe("weight"), use.maybe("bias")]
    eps = float(use.number("eps", 1e-5))
    to.emit("aten.layer_norm", operands, use.output, axis=axis, eps=eps)


@lowers("aten.rms_norm.default")
def rms_norm(use: Use, to: Builder) -> None:
    """Divide by the root mean square over the last axes."""
    axis = -len(use.integers("normalized_shape"))
    default = torch.finfo(torch_dtype(use.dtype_of("input"))).eps
    eps = float(use.number("eps", None) or default)
    if not use.has("weight"):
        raise UnsupportedUse("without a weight")
    operands = [use.tensor("input"), use.tensor("weight")]
    to.emit("braid.rms_norm", operands, use.output, axis=axis, eps=eps)


@lowers("aten.group_norm.default")
def group_norm(use: Use, to: Builder) -> None:
    """Normalise groups of channels."""
    use.without_effect("cudnn_enabled")
    operands = [use.tensor("input")]
    operands.append(_or_constant(use, to, "weight", _channels(use), 1.0))
    operands.append(_or_constant(use, to, "bias", _channels(use), 0.0))
    eps, groups = float(use.number("eps", 1e-5)), use.integer("num_groups")
    to.emit("braid.group_norm", operands, use.output, groups=groups, eps=eps, by_group=False)


@lowers("aten.instance_norm.default")
def instance_norm(use: Use, to: Builder) -> None:
    """Normalise each channel of each image."""
    use.without_effect("momentum", "cudnn_enabled")
    use.require("use_input_stats", True)
    use.without_effect("running_mean", "running_var")  # not read when the input has its own
    operands = [use.tensor("input")]
    operands.append(_or_constant(use, to, "weight", _channels(use), 1.0))
    operands.append(_or_constant(use, to, "bias", _channels(use), 0.0))
    to.emit("braid.instance_norm", operands, use.output, eps=float(use.number("eps")))


@lowers("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def softmax(use: Use, to: Builder) -> None:
    """Softmax along an axis."""
    _softmax(use, to, "aten.softmax")


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(use: Use, to: Builder) -> None:
    """Log of softmax."""
    _softmax(use, to, "aten.log_softmax")


def _softmax(use: Use, to: Builder, kind: str) -> None:
    use.require("half_to_float", False)
    x, dtype = use.tensor("self"), use.dtype()
    if dtype and dtype != use.dtype_of("self"):
        x = to.emit("braid.cast", [x], dtype=dtype)
    to.emit(kind, [x], use.output, dim=use.integer("dim"))
