"""What is measured on a GPU in which order, so that the most important is there if time ends.

batch 1, five CNNs: plans, eager, graph, reduce-overhead ─> the same: max-autotune, best plans
    ─> batch 1, other networks ─> batch 8, the same way ─> batch 32
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import monotonic

CNNS = ("squeezenet", "googlenet", "inception_v3", "randwire", "nasnet_large")
NETWORKS = (*CNNS, "bert_base", "deepfm", "t5_encoder")
BATCHES = (1, 8, 32)

BRAID = "braid"
EAGER, GRAPH = "torch-eager", "torch-cuda-graph"
REDUCE_OVERHEAD, MAX_AUTOTUNE = "torch-reduce-overhead", "torch-max-autotune"
PEERS = (EAGER, GRAPH, REDUCE_OVERHEAD, MAX_AUTOTUNE)

PATIENCE_S = {BRAID: 120.0, EAGER: 60.0, GRAPH: 60.0, REDUCE_OVERHEAD: 120.0, MAX_AUTOTUNE: 300.0}
"""How long each contender may take to become ready, unless less time is left."""


@dataclass(frozen=True, slots=True)
class Step:
    """Some contenders of one network at one batch size, measured in turns."""

    network: str
    batch: int
    contenders: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.network}, batch {self.batch}: {', '.join(self.contenders)}"


def agenda(
    networks: Sequence[str], batches: Sequence[int], without: Collection[str] = ()
) -> list[Step]:
    """All steps, the most important first."""
    steps = []
    for batch in batches:
        for group in (set(CNNS), set(networks) - set(CNNS)):
            chosen = [network for network in networks if network in group]
            quick = _without((BRAID, EAGER, GRAPH, REDUCE_OVERHEAD), without)
            slow = _without((BRAID, MAX_AUTOTUNE), without)
            steps += [Step(network, batch, quick) for network in chosen]
            if MAX_AUTOTUNE in slow:
                steps += [Step(network, batch, slow) for network in chosen]
    return steps


def _without(names: Sequence[str], without: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in without)


class Budget:
    """Seconds of a whole run."""

    def __init__(self, seconds: float) -> None:
        self._ends = monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._ends - monotonic())

    def at_most(self, seconds: float) -> float:
        return min(seconds, self.left_s)
