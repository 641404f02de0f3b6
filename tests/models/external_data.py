"""Models that keep weights in files beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def names_data(*locations: str) -> bytes:
    """A model of a few hundred bytes with a weight in each of these places."""
    nodes, weights = [], []
    for number, location in enumerate(locations):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        weights.append(tensor)
        nodes.append(helper.make_node("Add", ["x", tensor.name], [f"y{number}"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    outputs = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, ["n", 4])
               for n in range(len(nodes))]  # fmt: skip
    graph = helper.make_graph(nodes, "names", [x], outputs, weights)
    return helper.make_model(graph).SerializeToString()


def in_several_files(folder: Path, file: str = "model.onnx", *names: str) -> Path:
    """Write two convolutions, each with its weights in the next of ``names``."""
    rng = np.random.default_rng(0)
    shapes = {"a": (16, 3, 3, 3), "b": (8, 16, 3, 3)}
    weights = []
    for number, (name, shape) in enumerate(shapes.items()):
        values = rng.standard_normal(shape).astype(np.float32)
        tensor = numpy_helper.from_array(values, name)
        place = names[number % len(names)]
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        at = target.stat().st_size if target.exists() else 0
        with target.open("ab") as data:
            data.write(tensor.raw_data)
        entries = {"location": place, "offset": at, "length": len(tensor.raw_data)}
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        weights.append(tensor)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["y"], pads=[1, 1, 1, 1]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 16, 16])
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "several", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    path = folder / file
    onnx.save(model, path)
    return path
