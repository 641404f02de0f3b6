"""Operator by operator, the networks are those that the IOS authors' optimiser schedules.

Read from their graphs where these lie beside the repository; skipped where they do not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import NETWORKS
from benchmarks.networks.randwire import RandomStage
from benchmarks.networks.separable import ReluSeparable
from tests import ROOT

GRAPHS = ROOT.parent / "shared" / "data" / "graphs"


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return NETWORKS[name].construct().eval()


def ios_blocks(name: str) -> list[list[dict[str, Any]]]:
    path = GRAPHS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"the graph data of IOS is not beside this repository: no {path.name}")
    document = json.loads(path.read_text())
    return [
        [op for op in block["operators"] if op["type"] not in ("identity", "relu")]
        for block in document["blocks"]
    ]


def calls(name: str) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Each convolution, separable unit and pool that runs: path, module, input, output."""
    model = on_meta(name)
    seen: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def record(path: str, module: nn.Module) -> None:
        module.register_forward_hook(lambda m, args, out: seen.append((path, m, args[0], out)))

    for path, module in model.named_modules():
        record(path, module)
    model(*(x.to("meta") for x in NETWORKS[name].example_inputs(1)))
    separable = {path for path, module, _, _ in seen if isinstance(module, ReluSeparable)}
    kinds = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, ReluSeparable)
    for call in seen:
        if isinstance(call[1], kinds) and call[0].rpartition(".")[0] not in separable:
            yield call


def pair(value: object) -> tuple[int, int]:
    if isinstance(value, int):
        return (value, value)
    assert isinstance(value, tuple | list)
    first, second = value
    return (first, second)


def traits(module: nn.Module, x: Tensor, y: Tensor) -> dict[str, Hashable]:
    """The fields of an IOS operator that the module has, named as there."""
    shapes = {"in_shape": tuple(x.shape[1:]), "out_shape": tuple(y.shape[1:])}
    if isinstance(module, ReluSeparable):
        return traits(module.depthwise, x, y) | shapes | {"type": "separable"}
    if isinstance(module, nn.AdaptiveAvgPool2d):
        return {"type": "global_avg", **shapes}
    assert isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d)
    kind = {nn.Conv2d: "conv", nn.MaxPool2d: "max", nn.AvgPool2d: "avg"}[type(module)]
    window = {"kernel": module.kernel_size, "stride": module.stride, "padding": module.padding}
    return {"type": kind, **{field: pair(value) for field, value in window.items()}, **shapes}


def ios_traits(op: dict[str, Any]) -> dict[str, Hashable]:
    kind = {"relusepconv": "separable", "reluconv": "conv"}.get(op["type"]) or op["type"]
    kind = op["pool_type"] if kind == "pool" else kind
    found: dict[str, Hashable] = {
        "type": kind,
        "in_shape": tuple(op["in_shape"]),
        "out_shape": tuple(op["out_shape"]),
    }
    if kind != "global_avg":
        found |= {field: tuple(op[field]) for field in ("kernel", "stride", "padding")}
    return found


def by_block(name: str, block_of: Callable[[str], int], blocks: int) -> list[list[dict[str, Any]]]:
    result: list[list[dict[str, Any]]] = [[] for _ in range(blocks)]
    for path, module, x, y in calls(name):
        result[block_of(path)].append(traits(module, x, y))
    return result


def counted(operators: list[dict[str, Any]], fields: tuple[str, ...]) -> Counter[Hashable]:
    return Counter(tuple(op.get(field) for field in fields) for op in operators)


ALL = ("type", "kernel", "stride", "padding", "in_shape", "out_shape")


def squeezenet_block(path: str) -> int:
    head, _, rest = path.partition(".")
    return max(0, int(rest.partition(".")[0]) - 2) if head == "features" else 11


def inception_block(path: str) -> int:
    head, _, rest = path.partition(".")
    return (
        int(rest.partition(".")[0]) + 1 if head == "blocks" else {"stem": 0, "classifier": 12}[head]
    )


@pytest.mark.parametrize(
    ("name", "graph", "block_of"),
    [
        ("squeezenet_bypass", "squeezenet", squeezenet_block),
        ("inception_v3", "inception_v3", inception_block),
    ],
)
def test_every_operator_is_one_of_the_graph_ios_schedules(
    name: str, graph: str, block_of: Callable[[str], int]
) -> None:
    expected = ios_blocks(graph)
    found = by_block(name, block_of, len(expected))
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert counted(ours, ALL) == counted([ios_traits(op) for op in theirs], ALL), index


def randwire_block(path: str) -> int:
    head, _, rest = path.partition(".")
    if head == "stages":
        return int(rest.partition(".")[0]) + 1
    return 0 if head == "stem_conv" else 5


def test_random_stages_have_the_nodes_edges_and_shapes_of_ios() -> None:
    """The wiring is drawn anew, so how many nodes read the stage's input differs."""
    expected = ios_blocks("randwire_large")
    found = by_block("randwire", randwire_block, len(expected))
    for ours, theirs in zip(found, expected, strict=True):
        read = [ios_traits(op) for op in theirs]
        assert len(ours) == len(read)
        assert set(counted(ours, ALL)) == set(counted(read, ALL))

    model = on_meta("randwire")
    stages = [stage for stage in model.modules() if isinstance(stage, RandomStage)]
    for stage, theirs in zip(stages, expected[1:5], strict=True):
        ids = {op["id"] for op in theirs}
        edges = sum(len(ids & set(op["inputs"])) for op in theirs)
        assert sum(len(p) for p in stage.predecessors) == edges


def nasnet_block(path: str) -> int:
    head, _, rest = path.partition(".")
    if head == "cells":
        return int(rest.partition(".")[0]) + 3
    return {"stem_conv": 0, "stem0": 1, "stem1": 2, "classifier": 24}[head]


def test_every_cell_of_nasnet_has_the_operators_of_ios() -> None:
    """Kind, kernel, stride and output channels; IOS's transcription differs in what they read.

    It leaves the previous cell's output out of a normal cell's concatenation (5 terms, not 6), and
    in the second stem cell it adds the two paths of the factorised reduction instead of
    concatenating them, so that three operators there have half the channels: not compared.
    """
    expected = ios_blocks("nasnet_large")
    found = by_block("nasnet_large", nasnet_block, len(expected))
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        read = [ios_traits(op) for op in theirs]
        fields = ("type", "kernel", "stride") + (() if index == 2 else ("channels",))
        for op in (*ours, *read):
            op["channels"] = op["out_shape"][0]
            if op["type"] == "global_avg":
                op["channels"] = None
        assert counted(ours, fields) == counted(read, fields), f"block {index}"
