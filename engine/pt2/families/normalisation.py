"""Lowering of normalisations and softmax."""

from __future__ import annotations

import torch

from braid.engine.lowering.builder import Builder, UnsupportedUse
from braid.engine.ops.dtypes import torch_dtype
from braid.engine.pt2.call_arguments import CallArguments
from braid.engine.pt2.lowering_table import lowers


def _or_constant(call: CallArguments, to: Builder, name: str, channels: int, value: float) -> str:
    """Value name of a weight [channels], or of a constant where it is absent."""
    if call.has(name):
        return call.tensor(name)
    call.without_effect(name)
    dtype = torch_dtype(call.dtype_of("input"))
    return to.add_constant(f"{call.label}/{name}", torch.full((channels,), value, dtype=dtype))


def _channels(call: CallArguments) -> int:
    channels = call.shape_of("input")[1]
    if not isinstance(channels, int):
        raise UnsupportedUse("an open number of channels")
    return channels


@lowers("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def batch_norm(call: CallArguments, to: Builder) -> None:
    call.without_effect("momentum", "cudnn_enabled")
    call.require("training", False)
    if not call.has("running_mean"):
        raise UnsupportedUse("statistics of the batch itself")
    weight = _or_constant(call, to, "weight", _channels(call), 1.0)
    bias = _or_constant(call, to, "bias", _channels(call), 0.0)
    operands = [call.tensor("input"), weight, bias]
    operands += [call.tensor("running_mean"), call.tensor("running_var")]
    to.emit("aten.batch_norm", operands, call.output, eps=float(call.number("eps")))


@lowers("aten.layer_norm.default", "aten.native_layer_norm.default")
def layer_norm(call: CallArguments, to: Builder) -> None:
    call.without_effect("cudnn_enable")
    axis = -len(call.integers("normalized_shape"))
    operands = [call.tensor("input"), call.maybe("weight"), call.maybe("bias")]
    eps = float(call.number("eps", 1e-5))
    to.emit("aten.layer_norm", operands, call.output, axis=axis, eps=eps)


@lowers("aten.rms_norm.default")
def rms_norm(call: CallArguments, to: Builder) -> None:
    axis = -len(call.integers("normalized_shape"))
    default = torch.finfo(torch_dtype(call.dtype_of("input"))).eps
    eps = float(call.number("eps", None) or default)
    if not call.has("weight"):
        raise UnsupportedUse("without a weight")
    operands = [call.tensor("input"), call.tensor("weight")]
    to.emit("braid.rms_norm", operands, call.output, axis=axis, eps=eps)


@lowers("aten.group_norm.default")
def group_norm(call: CallArguments, to: Builder) -> None:
    call.without_effect("cudnn_enabled")
    operands = [call.tensor("input")]
    operands.append(_or_constant(call, to, "weight", _channels(call), 1.0))
    operands.append(_or_constant(call, to, "bias", _channels(call), 0.0))
    eps, groups = float(call.number("eps", 1e-5)), call.integer("num_groups")
    to.emit("braid.group_norm", operands, call.output, groups=groups, eps=eps, by_group=False)


@lowers("aten.instance_norm.default")
def instance_norm(call: CallArguments, to: Builder) -> None:
    call.without_effect("momentum", "cudnn_enabled")
    call.require("use_input_stats", True)
    call.without_effect("running_mean", "running_var")  # not read when the input has its own
    operands = [call.tensor("input")]
    operands.append(_or_constant(call, to, "weight", _channels(call), 1.0))
    operands.append(_or_constant(call, to, "bias", _channels(call), 0.0))
    to.emit("braid.instance_norm", operands, call.output, eps=float(call.number("eps")))


@lowers("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def softmax(call: CallArguments, to: Builder) -> None:
    _softmax(call, to, "aten.softmax")


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(call: CallArguments, to: Builder) -> None:
    _softmax(call, to, "aten.log_softmax")


def _softmax(call: CallArguments, to: Builder, kind: str) -> None:
    call.require("half_to_float", False)
    x, dtype = call.tensor("self"), call.dtype()
    if dtype and dtype != call.dtype_of("self"):
        x = to.emit("braid.cast", [x], dtype=dtype)
    to.emit(kind, [x], call.output, dim=call.integer("dim"))
