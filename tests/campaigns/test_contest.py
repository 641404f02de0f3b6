"""The simulator of contests: fifty hosts of each kind."""

from __future__ import annotations

import numpy as np
import pytest

from campaigns.contest.campaign import MOST_MEAN
from campaigns.contest.hosts import KINDS, host_of
from campaigns.contest.policies import contest, over_best


@pytest.mark.parametrize("kind", KINDS)
def test_a_contest_serves_nearly_as_the_best_fixed_candidate(kind: str) -> None:
    hosts = [host_of(kind, seed, requests=300) for seed in range(50)]

    ratios = [over_best(host, contest(host, seed), (50, 300)) for seed, host in enumerate(hosts)]

    after_50, after_300 = np.mean(ratios, axis=0)
    assert after_50 <= MOST_MEAN[50]
    assert after_300 <= MOST_MEAN[300]


def test_the_best_fixed_candidate_is_that_of_the_requests_in_question() -> None:
    host = host_of("constant", seed=3, requests=50)
    of_requests = host.latency_us[host.is_request]

    served = of_requests.max(axis=1)

    fixed_us = [sum(column) for column in of_requests.T.tolist()]
    assert over_best(host, served, [50]) == [pytest.approx(served.sum() / min(fixed_us))]


def test_a_seed_makes_one_host() -> None:
    one, same, other = (host_of("flap", seed, requests=20) for seed in (1, 1, 2))

    assert np.array_equal(one.latency_us, same.latency_us)
    assert not np.array_equal(one.screening_us.ravel()[:9], other.screening_us.ravel()[:9])
