"""What of a model the content of its inputs decides.

    inputs ──NonZero, NonMaxSuppression, ...──> values of any length ──> outputs
    integers ────────────────> operators that may refuse them

Content that is drawn does not show every length, so what comes of such operators is not relied on.
"""

from collections.abc import Iterable, Mapping

import onnx

from braid.engine.onnx.structure import all_nodes, subgraphs

_BY_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "StringSplit", "Unique"})

_SIZES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (
            *("AffineGrid", "CenterCropPad", "Col2Im", "DFT", "Expand", "OneHot", "Reshape"),
            *("Split", "Tile", "TopK"),
        ),
        (1,),
    ),
    "MaxUnpool": (2,),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""Operands that decide the shape of the result by their content."""

ADDRESSES: Mapping[str, tuple[int, ...]] = {
    **_SIZES,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "MaxRoiPool", "MaxUnpool"), (1,)),
    **dict.fromkeys(("ReverseSequence", "ScatterElements", "ScatterND"), (1,)),
    "CropAndResize": (1, 2, 3),
    "EmbedLayerNormalization": (0, 1),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "OneHot": (0, 1),
    "RoiAlign": (1, 2),
    "TensorScatter": (2,),
}
"""Operands that an operator takes for addresses or sizes."""

_OF_SHAPES = frozenset({"Shape", "Size"})


def outputs_by_content(graph: onnx.GraphProto) -> set[str]:
    """Values of a graph without local functions whose length depends on content of inputs."""
    constants = {"", *(proto.name for proto in graph.initializer)}
    content = {info.name for info in graph.input} - constants
    by_content: set[str] = set()
    for node in graph.node:
        inside = list(all_nodes([node]))
        read = {name for inner in inside for name in inner.input}
        if read & content and node.op_type not in _OF_SHAPES:
            content.update(node.output)
        if read <= constants and not any(subgraphs(node)):
            constants.update(node.output)
        elif read & by_content or any(_takes_sizes(inner, content) for inner in inside):
            by_content.update(node.output)
        elif node.op_type == "Loop" and not _is_counted(node, constants):
            by_content.update(node.output[len(node.input) - 2 :])  # one row for each turn
    return by_content - {""}


def _takes_sizes(node: onnx.NodeProto, content: set[str]) -> bool:
    places = _SIZES.get(node.op_type, ())
    return node.op_type in _BY_CONTENT or any(
        place < len(node.input) and node.input[place] in content for place in places
    )


def kinds_by_content(graph: onnx.GraphProto, inputs: Iterable[str]) -> set[str]:
    """Kinds of operators, in a graph without local functions, that read what ``inputs`` make."""
    reached, kinds = set(inputs), set[str]()
    for node in graph.node:
        inside = list(all_nodes([node]))
        if node.op_type not in _OF_SHAPES and reached & {n for op in inside for n in op.input}:
            reached.update(node.output)
            kinds.update(op.op_type for op in inside)
    return kinds


def _is_counted(loop: onnx.NodeProto, constants: set[str]) -> bool:
    """Whether a loop certainly makes a constant number of turns."""
    count, condition = loop.input[:2]
    (body,) = subgraphs(loop)
    copies = {name for node in body.node if node.op_type == "Identity" for name in node.output}
    sources = {node.output[0]: node.input[0] for node in body.node if node.output[0] in copies}
    goes_on = body.output[0].name
    kept = sources.get(goes_on, goes_on) == body.input[1].name
    return bool(count) and count in constants and not condition and kept
