"""Policies that choose among candidates, replayed on simulated hosts.

    kind, seed ──> host ──> contest, ──> latency served over
                            today's      the best fixed candidate's

Prints for each kind of host and each policy the mean and the 99th percentile after 50, 300 and
3,000 requests. Broken: a contest above the targets.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from campaigns.contest.hosts import KINDS, REQUESTS, host_of
from campaigns.contest.policies import POLICIES, over_best

AFTER = (50, 300, REQUESTS)
"""Requests after which a policy is compared."""

MOST_MEAN = {50: 1.05, 300: 1.02}
"""Target of the mean latency served over the best fixed candidate's."""

MOST = 1.10
"""Target of 99 hosts of 100, after any of these."""

Figures = dict[str, dict[str, dict[str, float]]]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=1000, help="hosts of each kind")


def run(options: argparse.Namespace) -> dict[str, Any]:
    seeds = range(options.seed, options.seed + options.seeds)
    figures = replay(seeds)
    broken = []
    for kind, policies in figures.items():
        broken += above_targets(kind, policies["contest"])
    return {"hosts of each kind": options.seeds, "figures": figures, "broken": broken}


def replay(seeds: Sequence[int], requests: int = REQUESTS) -> Figures:
    """Kind of host -> policy -> mean and 99th percentile after so many requests."""
    after = [count for count in AFTER if count <= requests]
    figures: Figures = {}
    for kind in KINDS:
        ratios: dict[str, list[list[float]]] = {name: [] for name in POLICIES}
        for seed in seeds:
            host = host_of(kind, seed, requests)
            for name, policy in POLICIES.items():
                ratios[name].append(over_best(host, policy(host, seed), after))
        figures[kind] = {name: _figures(found, after) for name, found in ratios.items()}
    return figures


def _figures(ratios: Sequence[Sequence[float]], after: Sequence[int]) -> dict[str, float]:
    figures = {}
    for count, column in zip(after, np.transpose(np.array(ratios)), strict=True):
        figures[f"mean {count}"] = round(float(column.mean()), 4)
        figures[f"p99 {count}"] = round(float(np.percentile(column, 99)), 3)
    return figures


def above_targets(kind: str, figures: dict[str, float]) -> list[str]:
    """What misses the targets, in words."""
    targets = {f"mean {count}": most for count, most in MOST_MEAN.items()}
    targets |= {name: MOST for name in figures if name.startswith("p99")}
    return [
        f"{kind}: {name} is {figures[name]}, at most {most} is the target"
        for name, most in targets.items()
        if figures[name] > most
    ]
