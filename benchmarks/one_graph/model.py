"""The user's model as kept: one opset, and its weights once, in a file that is mapped.

model.onnx ──store──> graph.onnx, which takes large weights as inputs; weights.bin; weights.json
graph.onnx + extents ──specialised──> static graph: shape arithmetic and constants are folded
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference, version_converter

from benchmarks.one_graph.rules import OPSET
from braid.engine.runtime.arrays import Array

SMALL_BYTES = 1024  # initialisers that stay in the graph: those may decide shapes
PAGE = 4096

DISABLED = ["MatMulAddFusion"]
"""It would write linear layers as ``Gemm`` between two ``Reshape``, which no user's file has."""

ORT, ONNXSCRIPT = "onnxruntime", "onnxscript"


@dataclass(frozen=True, slots=True)
class Type:
    """Type of a static value; ``dtype`` is numpy's."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored model: the graph, and weights over the mapped file, by name."""

    graph: ModelProto
    weights: Mapping[str, Array]
    places: Mapping[str, tuple[int, int, int]]  # ONNX's type, offset and bytes in the file
    folder: Path
    mapped: mmap.mmap

    def release(self) -> None:
        """Give memory back that holds what was read of weights; they are read again if asked."""
        self.mapped.madvise(mmap.MADV_DONTNEED)

    def external(self, name: str) -> TensorProto:
        """A weight as an initialiser that lies in the file."""
        kind, offset, size = self.places[name]
        proto = TensorProto(name=name, data_type=kind, dims=self.weights[name].shape)
        proto.data_location = TensorProto.EXTERNAL
        where = {"location": "weights.bin", "offset": str(offset), "length": str(size)}
        for key, value in where.items():
            proto.external_data.add(key=key, value=value)
        return proto


def store(path: Path, folder: Path) -> None:
    """Write a model into ``folder``: normalised, its weights beside it."""
    model = onnx.load(path)
    folder.mkdir(parents=True, exist_ok=True)
    small, facts, offset = [], dict[str, list[Any]](), 0
    with (folder / "weights.bin").open("wb") as file:
        for proto in model.graph.initializer:
            if len(proto.raw_data) < SMALL_BYTES and proto.ByteSize() < 2 * SMALL_BYTES:
                small.append(proto)
                continue
            content = numpy_helper.to_array(proto).tobytes()
            facts[proto.name] = [proto.data_type, list(proto.dims), offset, len(content)]
            file.write(content)
            offset += -(-len(content) // PAGE) * PAGE
            file.seek(offset)
        file.truncate(max(offset, PAGE))
    del model.graph.initializer[:]
    model.graph.initializer.extend(small)
    given = {info.name for info in model.graph.input}
    for name, (kind, shape, *_) in facts.items():
        if name not in given:
            model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))
    if next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx")) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    (folder / "graph.onnx").write_bytes(model.SerializeToString())
    (folder / "weights.json").write_text(json.dumps(facts))


def stored(folder: Path) -> Stored:
    with (folder / "weights.bin").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    content = np.frombuffer(mapped, np.uint8)
    weights, places = {}, {}
    for name, (kind, shape, offset, size) in json.loads(
        (folder / "weights.json").read_text()
    ).items():
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        weights[name] = content[offset : offset + size].view(dtype).reshape(shape)
        places[name] = kind, offset, size
    return Stored(onnx.load(folder / "graph.onnx"), weights, places, folder, mapped)


def specialised(model: ModelProto, extents: Mapping[str, int], how: str = ORT) -> ModelProto:
    """The graph for these extents of its open axes; its inputs' names stay."""
    static = ModelProto()
    static.CopyFrom(model)
    for info in static.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = extents[dim.dim_param]
    del static.graph.value_info[:]
    for info in static.graph.output:
        info.type.tensor_type.ClearField("shape")
    return _by_onnxruntime(static) if how == ORT else _by_onnxscript(static)


def _by_onnxruntime(static: ModelProto) -> ModelProto:
    """Its basic optimisation, written to a file."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = f"{folder}/basic.onnx"
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        onnxruntime.InferenceSession(
            *(static.SerializeToString(), options),
            providers=["CPUExecutionProvider"],
            disabled_optimizers=DISABLED,
        )
        return onnx.load(f"{folder}/basic.onnx")


def _by_onnxscript(static: ModelProto) -> ModelProto:
    import onnx_ir
    from onnxscript import optimizer

    model = onnx_ir.serde.deserialize_model(shape_inference.infer_shapes(static, data_prop=True))
    optimizer.optimize(model, onnx_shape_inference=True)
    return onnx_ir.serde.serialize_model(model)


def types_of(model: ModelProto) -> dict[str, Type]:
    """Types of all values whose shapes are known."""
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    types = {
        proto.name: Type(tuple(proto.dims), helper.tensor_dtype_to_np_dtype(proto.data_type))
        for proto in model.graph.initializer
    }
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            types[info.name] = Type(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return types
