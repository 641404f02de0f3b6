"""What was seen of one network at one batch size on a GPU, and what that means in ratios.

Two baselines, each a sequential CUDA graph: Braid's own sequential plan, the same fused kernels on
one stream, which shows what the schedule gains; and PyTorch's graph of the eager module, whose
kernels are not fused, which Opara's paper compares with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from benchmarks.cuda.agenda import BRAID, CNNS, EAGER, GRAPH, MAX_AUTOTUNE, REDUCE_OVERHEAD
from benchmarks.engine_results import geometric_mean
from braid.core.schedule import SEQUENTIAL

Clock = Literal["gpu", "total"]


@dataclass(slots=True)
class CudaCase:
    """One network at one batch size. Milliseconds of every run, by contender and clock."""

    network: str
    batch: int
    gpu_ms: dict[str, list[float]] = field(default_factory=dict)
    total_ms: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # contender -> why there is nothing
    notes: dict[str, object] = field(default_factory=dict)  # contender -> what was seen
    plan_of: dict[str, str] = field(default_factory=dict)  # planner -> the contender with its plan
    portfolio: str = ""  # the contender that it chose
    errors: dict[str, float] = field(default_factory=dict)  # of plans, relative
    scheduling: dict[str, float] = field(default_factory=dict)  # seconds, stages

    def median_ms(self, contender: str, clock: Clock = "gpu") -> float:
        """Over all turns; not a number where it did not run."""
        samples = (self.gpu_ms if clock == "gpu" else self.total_ms).get(contender)
        return median(samples) if samples else math.nan

    def plan_ms(self, planner: str, clock: Clock = "gpu") -> float:
        """Of the fastest plan of a planner, joined one way or another."""
        medians = [self.median_ms(one, clock) for text, one in self.plan_of.items()
                 if text.partition("(")[0] == planner]  # fmt: skip
        return min((ms for ms in medians if not math.isnan(ms)), default=math.nan)

    def portfolio_ms(self, clock: Clock = "gpu") -> float:
        return self.median_ms(self.portfolio, clock)

    @property
    def winner(self) -> str:
        """The contender with the least device time; empty if none ran."""
        return min(self.gpu_ms, key=self.median_ms, default="")


def contender_name(plan: str) -> str:
    return f"{BRAID} {plan}"


Rival = Callable[[CudaCase, Clock], float]

OWN_SEQUENTIAL = "own sequential CUDA graph"
PYTORCH_GRAPH = "PyTorch's CUDA graph"

RIVALS: Mapping[str, Rival] = {
    OWN_SEQUENTIAL: lambda case, clock: case.plan_ms(SEQUENTIAL, clock),
    PYTORCH_GRAPH: lambda case, clock: case.median_ms(GRAPH, clock),
    "Opara plan": lambda case, clock: case.plan_ms("opara", clock),
    "max-autotune": lambda case, clock: case.median_ms(MAX_AUTOTUNE, clock),
    "reduce-overhead": lambda case, clock: case.median_ms(REDUCE_OVERHEAD, clock),
    "torch eager": lambda case, clock: case.median_ms(EAGER, clock),
}
"""Whom the portfolio's plan is compared with."""


def ratios(cases: Sequence[CudaCase], batch: int, clock: Clock) -> dict[str, dict[str, float]]:
    """By what factor the portfolio's plan is faster, by rival and network; NaN where not seen."""
    chosen = [case for case in cases if case.batch == batch]
    by_rival = {}
    for name, rival in RIVALS.items():
        values = {case.network: rival(case, clock) / case.portfolio_ms(clock) for case in chosen}
        cnns = [value for network, value in values.items() if network in CNNS]
        by_rival[name] = values | {"geometric mean of the CNNs": geometric_mean(cnns)}
    return by_rival


@dataclass(frozen=True, slots=True)
class Goal:
    """Something to be reached at batch 1, FP32, by the device's clock."""

    text: str
    least: float
    measured: float  # NaN: not measured
    of: int  # networks it was seen on
    needed: int

    @property
    def verdict(self) -> str:
        """Reached, missed, or not seen on all networks that it is about."""
        if math.isnan(self.measured) or not self.of:
            return "not seen"
        reached = "reached" if self.measured >= self.least else "missed"
        return reached if self.of >= self.needed else f"{reached} so far, not seen on all"


SCHEDULING_S = {"inception_v3": 20.0, "nasnet_large": 90.0}
"""Seconds that scheduling may take at batch 1, from the graph to the plan that serves."""


def goals(cases: Sequence[CudaCase]) -> list[Goal]:
    return [*_speed_goals(cases), *(_scheduling_goal(cases, name) for name in SCHEDULING_S)]


def _scheduling_goal(cases: Sequence[CudaCase], network: str) -> Goal:
    took = [case.scheduling["total_s"] for case in cases_at(cases, 1)
            if case.network == network and case.scheduling]  # fmt: skip
    limit_s = SCHEDULING_S[network]
    text = f"scheduling {network} within {limit_s:.0f} s, the limit over what it took"
    return Goal(text, 1.0, limit_s / took[0] if took else math.nan, len(took), 1)


def _speed_goals(cases: Sequence[CudaCase]) -> list[Goal]:
    by_rival = ratios(cases, 1, "gpu")

    def on_cnns(rival: str) -> list[float]:
        values = by_rival[rival].items()
        return [ratio for network, ratio in values if network in CNNS and not math.isnan(ratio)]

    def mean(text: str, rival: str, least: float) -> Goal:
        cnn_ratios = on_cnns(rival)
        return Goal(text, least, geometric_mean(cnn_ratios), len(cnn_ratios), len(CNNS))

    def best(text: str, rival: str, least: float) -> Goal:
        cnn_ratios = on_cnns(rival)
        return Goal(text, least, max(cnn_ratios, default=math.nan), len(cnn_ratios), 1)

    everywhere = [
        ratio for network, ratio in by_rival[OWN_SEQUENTIAL].items()
        if not network.startswith("geometric") and not math.isnan(ratio)
    ]  # fmt: skip
    worst = min(everywhere, default=math.nan)
    return [
        mean(f"CNNs against the {OWN_SEQUENTIAL}, geometric mean", OWN_SEQUENTIAL, 1.5),
        best(f"the best CNN against the {OWN_SEQUENTIAL}", OWN_SEQUENTIAL, 1.68),
        mean(f"CNNs against {PYTORCH_GRAPH}, geometric mean", PYTORCH_GRAPH, 1.5),
        best(f"the best CNN against {PYTORCH_GRAPH}", PYTORCH_GRAPH, 1.68),
        mean("CNNs against the Opara plan, geometric mean", "Opara plan", 1.1),
        mean("CNNs against torch.compile max-autotune, geometric mean", "max-autotune", 1.2),
        Goal(f"the worst network against the {OWN_SEQUENTIAL}", 1.0, worst,
             len(everywhere), len(cases_at(cases, 1))),
    ]  # fmt: skip


def cases_at(cases: Sequence[CudaCase], batch: int) -> list[CudaCase]:
    return [case for case in cases if case.batch == batch]
