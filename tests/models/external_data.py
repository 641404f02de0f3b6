"""Models that keep weights in files beside them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.models.graphs import parsed


def names_data(*locations: str) -> bytes:
    """A model of a few hundred bytes with a weight in each of these places."""
    outputs = ", ".join(f"float[n, 4] y{number}" for number in range(len(locations)))
    nodes = " ".join(f"y{number} = Add(x, w{number})" for number in range(len(locations)))
    made = parsed(f"(float[n, 4] x) => ({outputs}) {{ {nodes} }}")
    for number, location in enumerate(locations):
        tensor = made.graph.initializer.add(name=f"w{number}", data_type=1, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    return made.SerializeToString()


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
    model = parsed(
        """(float[n, 3, 16, 16] x) => (float[n, 8, 16, 16] y) {
          c = Conv<pads=[1, 1, 1, 1]>(x, a)  r = Relu(c)  y = Conv<pads=[1, 1, 1, 1]>(r, b) }""",
        {tensor.name: tensor for tensor in weights},
    )
    path = folder / file
    onnx.save(model, path)
    return path
