"""Policies replayed on a host: which candidate serves each request, and the latency that it has.

host ──screening──> estimates ──> contest, or today's choice ──> latency served, over the best
                                                                 fixed candidate's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from braid.core.contest import Contest
from braid.core.sign_test import speed_beside
from campaigns.contest.hosts import Floats, Host

ROUNDS, BLOCK = 5, 3
"""Screening for a contest: rounds with a block of each candidate; its first run does not count."""

TURNS = 15
"""Turns of the comparison at registration up to now."""

LEAST_GAIN = 0.005
"""Gain over the sequential plan that another one must have, up to now."""


def contest(host: Host, seed: int) -> Floats:
    """Latency of each request under a contest that stays open, in idle time, too."""
    policy = Contest(host.candidates, estimates_us=screened_us(host), seed=seed)
    columns = {name: column for column, name in enumerate(host.candidates)}
    served_us, before, since = [], policy.incumbent, len(host.change)
    runs = host.latency_us.tolist(), host.at_s.tolist(), host.is_request.tolist()
    for row_us, at, is_request in zip(*runs, strict=True):
        if not is_request and policy.is_decided:
            continue
        name = policy.next(free=not is_request)
        run_us = row_us[columns[name]]
        since = 0 if name != before else since + 1
        if since < len(host.change):
            run_us *= 1.0 + host.change[since]
        before = name
        policy.took(name, run_us, at=at)
        if is_request:
            served_us.append(run_us)
        if policy.is_decided and policy.left_interval:
            policy.reopen(host.candidates)
    return np.array(served_us)


def screened_us(host: Host) -> list[float]:
    """Median of each candidate's blocks, in rounds that see the same host."""
    blocks_us: list[list[float]] = [[] for _ in host.candidates]
    run = 0
    for _ in range(ROUNDS):
        for column, found_us in enumerate(blocks_us):
            block_us = host.screening_us[run : run + BLOCK, column].copy()
            block_us *= 1.0 + np.array(host.change[:BLOCK])
            found_us.append(float(np.median(block_us[1:])))
            run += BLOCK
    return [median(found_us) for found_us in blocks_us]


def today(host: Host, seed: int) -> Floats:
    """Latency of each request if a measurement at registration chooses once and for all.

    Another candidate serves only if it is faster than the sequential plan without doubt. All turns
    count as quiet, and no run bears the cost of a change: both favour this policy.
    """
    count = len(host.candidates)
    turns_us = [host.screening_us[np.arange(TURNS) * count + c, c].tolist() for c in range(count)]
    faster: dict[int, float] = {}
    for column in range(1, count):
        speed = speed_beside(turns_us[column], turns_us[0])
        if speed is not None and speed.is_faster and speed.median > 1.0 + LEAST_GAIN:
            faster[column] = speed.median
    chosen = max(faster, key=faster.__getitem__, default=0)
    return np.asarray(host.latency_us[host.is_request, chosen])


POLICIES: Mapping[str, Callable[[Host, int], Floats]] = {"contest": contest, "today": today}


def over_best(host: Host, served_us: Floats, after: Sequence[int]) -> list[float]:
    """Mean latency served over the best fixed candidate's in hindsight, after so many requests."""
    fixed_us = np.cumsum(host.latency_us[host.is_request], axis=0)
    sums_us = np.cumsum(served_us)
    return [float(sums_us[count - 1] / fixed_us[count - 1].min()) for count in after]
