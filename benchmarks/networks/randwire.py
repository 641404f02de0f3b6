"""RandWire: networks wired by a small-world generator (Xie et al., 2019).

WS(4, 0.75) gives an undirected graph per stage; its edges are directed from the lower node number
to the higher. A node computes

    sum of sigmoid(w_i) * input_i ──> ReLU ──> depthwise 3x3 ──> 1x1 ──> batch norm

(a single input is not weighted). Nodes without a predecessor read the stage's input with stride 2;
the outputs of nodes without a successor are averaged. Output: logits [batch, 1000].

The regular regime with 154 channels is the network that IOS schedules (there "randwire large").
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.networks.layers import Classifier
from benchmarks.networks.separable import ReluSeparable

Edge = tuple[int, int]


def small_world(nodes: int, degree: int, probability: float, rng: random.Random) -> list[Edge]:
    """Edges (low, high), sorted, of a connected Watts-Strogatz graph.

    A ring in which each node is joined to its ``degree / 2`` nearest on either side; then each
    edge's far end moves, with ``probability``, to a node drawn uniformly. Repeated until connected.
    Draws in the order of networkx's ``connected_watts_strogatz_graph``, so it gives the same graph.
    """
    while True:
        neighbours = _watts_strogatz(nodes, degree, probability, rng)
        if _is_connected(neighbours):
            return sorted((a, b) for a in range(nodes) for b in neighbours[a] if a < b)


def _watts_strogatz(
    nodes: int, degree: int, probability: float, rng: random.Random
) -> list[set[int]]:
    neighbours: list[set[int]] = [set() for _ in range(nodes)]
    ring = [(a, (a + hop) % nodes) for hop in range(1, degree // 2 + 1) for a in range(nodes)]
    for a, b in ring:
        neighbours[a].add(b)
        neighbours[b].add(a)
    everyone = range(nodes)
    for a, b in ring:
        if rng.random() >= probability:
            continue
        target = rng.choice(everyone)
        while target == a or target in neighbours[a]:
            target = rng.choice(everyone)
            if len(neighbours[a]) >= nodes - 1:
                break
        else:
            neighbours[a].remove(b)
            neighbours[b].remove(a)
            neighbours[a].add(target)
            neighbours[target].add(a)
    return neighbours


def _is_connected(neighbours: Sequence[set[int]]) -> bool:
    reached, frontier = {0}, [0]
    while frontier:
        fresh = neighbours[frontier.pop()] - reached
        reached |= fresh
        frontier.extend(fresh)
    return len(reached) == len(neighbours)


class WeightedSum(nn.Module):
    """Sum of sigmoid(w_i) * input_i."""

    def __init__(self, terms: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(terms))

    def draw_weights(self, uniform: Callable[[Tensor, float, float], None]) -> None:
        """Draw sigmoid(w) around 1 / sqrt(terms), so that the sum is as large as one term."""
        middle = -math.log(math.sqrt(len(self.weight)) - 1)
        uniform(self.weight, middle - 0.3, middle + 0.3)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        scale = torch.sigmoid(self.weight)
        total = scale[0] * inputs[0]
        for index, x in enumerate(inputs[1:], start=1):
            total = total + scale[index] * x
        return total


class RandomStage(nn.Module):
    """One randomly wired graph: from ``inputs`` to ``outputs`` channels at half the resolution."""

    def __init__(self, edges: Sequence[Edge], nodes: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.predecessors = [[a for a, b in edges if b == node] for node in range(nodes)]
        has_successor = {a for a, _ in edges}
        self.last = [node for node in range(nodes) if node not in has_successor]
        # The average over the last nodes must be as large as any other node's output.
        last_gain = math.sqrt(len(self.last))
        self.sums = nn.ModuleList(
            WeightedSum(len(p)) if len(p) > 1 else nn.Identity() for p in self.predecessors
        )
        self.nodes = nn.ModuleList(
            ReluSeparable(
                outputs if self.predecessors[node] else inputs,
                outputs,
                3,
                stride=1 if self.predecessors[node] else 2,
                gain=1.0 if node in has_successor else last_gain,
            )
            for node in range(nodes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, h, w] to [batch, outputs, ceil(h / 2), ceil(w / 2)]."""
        values: list[Tensor] = []
        for predecessors, add, node in zip(self.predecessors, self.sums, self.nodes, strict=True):
            read = [values[p] for p in predecessors] or [x]
            values.append(node(read[0] if len(read) == 1 else add(read)))
        total = values[self.last[0]]
        for node_index in self.last[1:]:
            total = total + values[node_index]
        return total / len(self.last) if len(self.last) > 1 else total


class RandWire(nn.Module):
    """Image classifier for [batch, 3, 224, 224].

    ``channels`` is C of the paper's Table 1. The small regime replaces the first random stage, of
    half the nodes, by one convolution. ``wiring_seed`` chooses the graphs.
    """

    def __init__(
        self,
        channels: int,
        *,
        small: bool = False,
        nodes: int = 32,
        wiring_seed: int = 0,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        rng = random.Random(wiring_seed)

        def stage(count: int, inputs: int, outputs: int) -> RandomStage:
            return RandomStage(small_world(count, 4, 0.75, rng), count, inputs, outputs)

        self.stem_conv = nn.Conv2d(3, channels // 2, 3, stride=2, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels // 2)
        width = channels if small else 2 * channels
        first: nn.Module = (
            ReluSeparable(channels // 2, channels, 3, stride=2)
            if small
            else stage(nodes // 2, channels // 2, channels)
        )
        self.stages = nn.Sequential(
            first,
            stage(nodes, channels, width),
            stage(nodes, width, 2 * width),
            stage(nodes, 2 * width, 4 * width),
        )
        self.head_conv = nn.Conv2d(4 * width, 1280, 1, bias=False)
        self.head_norm = nn.BatchNorm2d(1280)
        self.classifier = Classifier(1280, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stages(self.stem_norm(self.stem_conv(image)))
        x = torch.relu(self.head_norm(self.head_conv(torch.relu(x))))
        logits: Tensor = self.classifier(x)
        return logits
