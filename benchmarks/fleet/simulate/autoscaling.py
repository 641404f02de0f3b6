"""Nodes added and removed by the server's own policy for Ray Serve (server/ray/scaling.py).

As Ray Serve does it: nodes report their waiting and busyness, the policy says how many nodes are
wanted by the means of the last ``look_back_s``. More are started once that has been so for
``up_after_s``, and take requests ``start_s`` later; fewer are kept after ``down_after_s``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean
from typing import Any

from benchmarks.fleet.simulate.nodes import Node
from braid.server.ray.scaling import BUSY, SAMPLE_SECONDS, WAITING_MS, ExpectedWaiting


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Bounds, the policy, and its delays in seconds."""

    least: int
    most: int
    policy: ExpectedWaiting = field(default_factory=ExpectedWaiting)
    start_s: float = 20.0  # from the decision until a new node takes requests
    look_back_s: float = 15.0
    up_after_s: float = 10.0
    down_after_s: float = 300.0


@dataclass(frozen=True, slots=True)
class _Context:
    """What Ray Serve tells a policy."""

    current_num_replicas: int
    target_num_replicas: int
    aggregated_metrics: Mapping[str, Mapping[Any, float]]


class Autoscaler:
    """Grows and shrinks a list of nodes."""

    def __init__(
        self,
        rule: Autoscaling,
        nodes: list[Node],
        make: Callable[[int], Node],
        look: Callable[[], None],
    ) -> None:
        """Call ``look`` after each change."""
        self._rule, self._nodes, self._make, self._look = rule, nodes, make, look
        self._starting = 0
        self._samples: dict[Node, deque[tuple[float, float]]] = {}  # waiting in ms, busy: 0 or 1
        self._since: dict[bool, float] = {}  # up, down: when it was first wanted
        self.sizes: list[tuple[float, int]] = []  # (second, nodes that take requests)

    async def run(self) -> None:
        """Look and change each second, until cancelled."""
        while True:
            for _ in range(round(1 / SAMPLE_SECONDS)):
                await asyncio.sleep(SAMPLE_SECONDS)
                self._sample()
            self._decide(asyncio.get_running_loop().time())

    def _sample(self) -> None:
        kept = round(self._rule.look_back_s / SAMPLE_SECONDS)
        for node in self._up():
            samples = self._samples.setdefault(node, deque(maxlen=kept))
            backlog_s = node.backlog_s()
            samples.append((1e3 * backlog_s, float(backlog_s > 0)))

    def _decide(self, now: float) -> None:
        up = self._up()
        self.sizes.append((now, len(up)))
        have = len(up) + self._starting
        wanted = self._wanted(up, have)
        for is_up, is_so in ((True, wanted > have), (False, wanted < have)):
            if not is_so:
                self._since.pop(is_up, None)
            else:
                self._since.setdefault(is_up, now)
        if now - self._since.get(True, now) >= self._rule.up_after_s:
            for _ in range(wanted - have):
                self._start()
            self._since.clear()
        if now - self._since.get(False, now) >= self._rule.down_after_s:
            for node in up[wanted:]:
                node.is_leaving = True
            self._look()
            self._since.clear()

    def _wanted(self, up: list[Node], have: int) -> int:
        means = {
            node: [fmean(column) for column in zip(*self._samples[node], strict=True)]
            for node in up
        }
        metrics = {
            WAITING_MS: {node: mean[0] for node, mean in means.items()},
            BUSY: {node: mean[1] for node, mean in means.items()},
        }
        wanted, _ = self._rule.policy(_Context(len(up), have, metrics))
        return min(max(ceil(wanted - 1e-9), self._rule.least), self._rule.most)

    def _up(self) -> list[Node]:
        return [node for node in self._nodes if node.takes_requests]

    def _start(self) -> None:
        self._starting += 1

        def begin() -> None:
            self._starting -= 1
            node = self._make(len(self._nodes))
            self._nodes.append(node)
            self._sample()
            self._look()

        asyncio.get_running_loop().call_later(self._rule.start_s, begin)
