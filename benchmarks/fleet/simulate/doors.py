"""Choice of the node that takes a request, as balancers make it.

    round robin          each node in its turn
    least connections    the node with the fewest requests that this door gave it (HAProxy)
    two choices          of two random nodes, the one with fewer
    expected latency     the node whose batcher expects to answer first, as it last told

With ``slots``, a node has at most so many requests of a door; more wait at the door, in order, and
go to the node that has room first. A door knows only the requests that went through it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from benchmarks.fleet.simulate.nodes import Node


class NoNode(Exception):
    """No node takes requests."""


@dataclass(frozen=True, slots=True)
class DoorPolicy:
    """Rule by which a door chooses."""

    name: str
    by: Literal["turns", "open", "expected"]
    choices: int | None = None  # random nodes that are compared; None: all
    slots: int | None = None  # requests of this door on one node, at most
    told_every_s: float = 0.0  # between two reports of a node's expected latency; 0: always known
    is_weighted: bool = False  # open requests count by the node's speed


ROUND_ROBIN = DoorPolicy("round robin", "turns")
LEAST_CONNECTIONS = DoorPolicy("least connections", "open")
TWO_CHOICES = DoorPolicy("two choices", "open", choices=2)
EXPECTED_LATENCY = DoorPolicy("expected latency", "expected")
POLICIES = (ROUND_ROBIN, LEAST_CONNECTIONS, TWO_CHOICES, EXPECTED_LATENCY)


@dataclass(slots=True)
class _NodeView:
    """What a door knows of a node."""

    turn: float  # grows with each change: of equal nodes, the one that changed least lately goes
    open: int = 0  # requests that it gave the node
    told_at: float = -1.0
    told_s: float = 0.0


class Door:
    """One balancer before all nodes."""

    def __init__(self, policy: DoorPolicy, nodes: Sequence[Node], chance: random.Random) -> None:
        """Look at ``nodes`` for each request: the list may grow."""
        self._policy, self._nodes, self._chance = policy, nodes, chance
        self._views: dict[Node, _NodeView] = {}
        self._turns = count(1)
        self._waiting: deque[asyncio.Future[Node]] = deque()

    async def take(self) -> Node:
        """Return the node for one request; waits while no node has a free slot.

        Raises:
            NoNode: no node takes requests.
        """
        if not self._waiting and (node := self._best()) is not None:
            self._count(node, 1)
            return node
        if not any(node.takes_requests for node in self._nodes):
            raise NoNode("no node is ready")
        place: asyncio.Future[Node] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        return await place

    def give_back(self, node: Node) -> None:
        """Count the end of a request, and let those that wait go on."""
        self._count(node, -1)
        self.look()

    def look(self) -> None:
        """Let those that wait go to nodes that have room, e.g. as one has come back."""
        while self._waiting and (node := self._best()) is not None:
            self._count(node, 1)
            self._waiting.popleft().set_result(node)
        if not any(node.takes_requests for node in self._nodes):
            while self._waiting:
                self._waiting.popleft().set_exception(NoNode("no node is ready"))

    def _best(self) -> Node | None:
        slots = self._policy.slots
        free = [
            node
            for node in self._nodes
            if node.takes_requests and (slots is None or self._of(node).open < slots)
        ]
        if not free:
            return None
        choices = self._policy.choices
        if choices is not None and choices < len(free):
            free = self._chance.sample(free, choices)
        return min(free, key=self._rank)

    def _rank(self, node: Node) -> tuple[float, float]:
        view = self._of(node)
        match self._policy.by:
            case "turns":
                return 0.0, view.turn
            case "open":
                weight = node.device.rows_per_s if self._policy.is_weighted else 1.0
                return (view.open + 1) / weight if view.open else 0.0, view.turn
            case "expected":
                return self._told_s(node, view), view.turn

    def _told_s(self, node: Node, view: _NodeView) -> float:
        """Return the node's expected latency, as it told last."""
        now = asyncio.get_running_loop().time()
        if view.told_at < 0 or now >= view.told_at + self._policy.told_every_s:
            view.told_at, view.told_s = now, node.expected_s()
        return view.told_s

    def _of(self, node: Node) -> _NodeView:
        view = self._views.get(node)
        if view is None:
            # Doors that have run for long do not go round in step.
            view = self._views[node] = _NodeView(-self._chance.random())
        return view

    def _count(self, node: Node, more: int) -> None:
        view = self._of(node)
        view.open += more
        if self._policy.by != "turns" or more > 0:
            view.turn = next(self._turns)
