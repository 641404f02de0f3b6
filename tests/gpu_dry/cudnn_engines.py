"""Which engines cuDNN has for convolutions on a device that is described to it: no GPU is asked.

    cudnn_engines.py CUDNN DEVICE.json ──> a line for each question, as JSON:
        precision, layout, fusion, shape, how many engines, whether one of them could be built

Operation graphs are those of torch: a convolution; + bias, ReLU; + a sum, bias, ReLU. Engines that
round inputs to a narrower type are left out, for FP32 without TF32 also those on tensor cores.
CUDNN is the folder of its wheel, whose header has the numbers behind the names.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

Descriptor = ctypes.c_void_p
Value = bool | int | float | bytes | str | Descriptor
"""Of an attribute; a text names an enumerator of cudnn_graph.h without its CUDNN_."""

C_TYPES = {
    bool: ("BOOLEAN", ctypes.c_bool),
    int: ("INT64", ctypes.c_int64),
    float: ("FLOAT", ctypes.c_float),
    bytes: ("CHAR", ctypes.c_char),
    Descriptor: ("BACKEND_DESCRIPTOR", Descriptor),
}
ENUMERATIONS = {
    "DATA": "DATA_TYPE",
    "CROSS": "CONVOLUTION_MODE",
    "POINTWISE": "POINTWISE_MODE",
    "HEUR": "HEUR_MODE",
}
"""First word of an enumerator -> the type of its attribute."""

SHAPES = {  # channels, size, filters, rows and columns of a filter, stride
    "3x3, 32 x 147": (32, 147, 64, 3, 3, 1),
    "5x5, 48 x 35": (48, 35, 64, 5, 5, 1),
    "1x1, 288 x 35": (288, 35, 64, 1, 1, 1),
    "1x7, 192 x 17": (192, 17, 192, 1, 7, 1),
    "3x3, 448 x 8": (448, 8, 384, 3, 3, 1),
    "7x7 by 2, 3 x 224": (3, 224, 64, 7, 7, 2),
}
PRECISIONS = {"fp32": "FLOAT", "tf32": "FLOAT", "fp16": "HALF", "bf16": "BFLOAT16"}
LAYOUTS = ("nchw", "nhwc")
FUSIONS = ("conv", "conv-relu", "conv-add-relu")


class Cudnn:
    """Descriptors of cuDNN's backend."""

    def __init__(self, folder: Path) -> None:
        header = (folder / "include/cudnn_graph.h").read_text()
        pairs = re.findall(r"\bCUDNN_(\w+)\s*=\s*(\d+)", header)
        self.numbers = {name: int(number) for name, number in pairs}
        self._library = ctypes.CDLL(str(folder / "lib/libcudnn.so.9"))
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise RuntimeError(f"{name}: {self._library.cudnnGetErrorString(status).decode()}")

    def unfinished(self, kind: str) -> Descriptor:
        descriptor = Descriptor()
        number = self.numbers[f"BACKEND_{kind}_DESCRIPTOR"]
        self._call("cudnnBackendCreateDescriptor", number, ctypes.byref(descriptor))
        return descriptor

    def descriptor(self, kind: str, **attributes: Value | Sequence[Value]) -> Descriptor:
        descriptor = self.unfinished(kind)
        for name, value in attributes.items():
            values: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
            c_type: Any = ctypes.c_int
            if isinstance(first := values[0], str):
                type_name = ENUMERATIONS[first.partition("_")[0]]
                values = [self.numbers[value] for value in values]
            else:
                type_name, c_type = C_TYPES[type(first)]
            which = self.numbers[f"ATTR_{kind}_{name}"], self.numbers[f"TYPE_{type_name}"]
            elements = ctypes.c_int64(len(values)), (c_type * len(values))(*values)
            self._call("cudnnBackendSetAttribute", descriptor, *which, *elements)
        self._call("cudnnBackendFinalize", descriptor)
        return descriptor

    def read(
        self, descriptor: Descriptor, name: str, type_name: str, room: ctypes.Array[Any] | None
    ) -> int:
        """Fill ``room``; how many elements there are."""
        length = ctypes.c_int64()
        which = self.numbers[f"ATTR_{name}"], self.numbers[f"TYPE_{type_name}"]
        place = ctypes.c_int64(len(room or ())), ctypes.byref(length), room
        self._call("cudnnBackendGetAttribute", descriptor, *which, *place)
        return length.value

    def can_build(self, configuration: Descriptor, device: Descriptor) -> bool:
        try:
            plan = self.descriptor("EXECUTION_PLAN", ENGINE_CONFIG=configuration, DEVICEPROP=device)
        except RuntimeError:
            return False
        self._call("cudnnBackendDestroyDescriptor", plan)
        return True


def operations(
    cudnn: Cudnn, precision: str, layout: str, fusion: str, shape: str
) -> Iterator[Descriptor]:
    channels, size, filters, rows, columns, stride = SHAPES[shape]
    numbers = count(1)

    def tensor(*extents: int, inner: bool = False) -> Descriptor:
        c, h, w = extents[1:]
        strides = (c * h * w, 1, w * c, c) if layout == "nhwc" else (c * h * w, h * w, w, 1)
        return cudnn.descriptor(
            "TENSOR",
            UNIQUE_ID=next(numbers),
            DATA_TYPE="DATA_FLOAT" if inner else f"DATA_{PRECISIONS[precision]}",
            BYTE_ALIGNMENT=16,
            DIMENSIONS=extents,
            STRIDES=strides,
            IS_VIRTUAL=inner,
        )

    def pointwise(mode: str, **tensors: Descriptor) -> Descriptor:
        kind = cudnn.descriptor("POINTWISE", MODE=f"POINTWISE_{mode}", MATH_PREC="DATA_FLOAT")
        return cudnn.descriptor("OPERATION_POINTWISE", PW_DESCRIPTOR=kind, **tensors)

    padding = (rows // 2, columns // 2)
    height = (size + 2 * padding[0] - rows) // stride + 1
    width = (size + 2 * padding[1] - columns) // stride + 1
    y = tensor(1, filters, height, width)
    convolved = y if fusion == "conv" else tensor(1, filters, height, width, inner=True)
    yield cudnn.descriptor(
        "OPERATION_CONVOLUTION_FORWARD",
        ALPHA=1.0,
        BETA=0.0,
        X=tensor(1, channels, size, size),
        W=tensor(filters, channels, rows, columns),
        Y=convolved,
        CONV_DESC=cudnn.descriptor(
            "CONVOLUTION",
            SPATIAL_DIMS=2,
            COMP_TYPE="DATA_FLOAT",
            CONV_MODE="CROSS_CORRELATION",
            PRE_PADDINGS=padding,
            POST_PADDINGS=padding,
            DILATIONS=(1, 1),
            FILTER_STRIDES=(stride, stride),
        ),
    )
    if fusion == "conv":
        return
    added = [tensor(1, filters, 1, 1)]
    if fusion == "conv-add-relu":
        added.insert(0, tensor(1, filters, height, width))
    for other in added:
        before, convolved = convolved, tensor(1, filters, height, width, inner=True)
        yield pointwise("ADD", XDESC=before, BDESC=other, YDESC=convolved)
    yield pointwise("RELU_FWD", XDESC=convolved, YDESC=y)


def configurations(cudnn: Cudnn, graph: Descriptor, device: Descriptor) -> Iterator[Descriptor]:
    for mode in ("HEUR_MODE_INSTANT", "HEUR_MODE_FALLBACK"):
        asked = {"OPERATION_GRAPH": graph, "MODE": mode, "DEVICEPROP": device}
        try:
            heuristics = cudnn.descriptor("ENGINEHEUR", **asked)
        except RuntimeError:  # it has none
            continue
        results = heuristics, "ENGINEHEUR_RESULTS", "BACKEND_DESCRIPTOR"
        length = cudnn.read(*results, None)
        room = (Descriptor * length)(*(cudnn.unfinished("ENGINECFG") for _ in range(length)))
        yield from map(Descriptor, room[: cudnn.read(*results, room)])


def suits(cudnn: Cudnn, configuration: Descriptor, precision: str) -> bool:
    engine = (Descriptor * 1)(cudnn.unfinished("ENGINE"))
    cudnn.read(configuration, "ENGINECFG_ENGINE", "BACKEND_DESCRIPTOR", engine)
    notes = (ctypes.c_int * 64)()
    length = cudnn.read(Descriptor(engine[0]), "ENGINE_NUMERICAL_NOTE", "NUMERICAL_NOTE", notes)
    refused = ["DOWN_CONVERT_INPUTS", *(["TENSOR_CORE"] if precision == "fp32" else [])]
    return not {cudnn.numbers[f"NUMERICAL_NOTE_{note}"] for note in refused} & {*notes[:length]}


def main(folder: str, description: str) -> None:
    cudnn = Cudnn(Path(folder))
    characters = [bytes([byte]) for byte in Path(description).read_bytes()]
    device = cudnn.descriptor("DEVICEPROP", JSON_REPRESENTATION=characters)
    for question in product(PRECISIONS, LAYOUTS, FUSIONS, SHAPES):
        graph = cudnn.descriptor("OPERATIONGRAPH", OPS=[*operations(cudnn, *question)])
        suitable = [
            configuration
            for configuration in configurations(cudnn, graph, device)
            if suits(cudnn, configuration, question[0])
        ]
        is_built = any(cudnn.can_build(configuration, device) for configuration in suitable)
        print(json.dumps([*question, len(suitable), is_built]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
