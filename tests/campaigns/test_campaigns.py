"""Parts of the campaigns, briefly: simulators, damaged bytes, slopes, mixed calls, drawn graphs."""

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest

from braid_client.tensors import Array
from campaigns.contest.campaign import MOST_MEAN
from campaigns.contest.hosts import KINDS, host_of
from campaigns.contest.policies import contest, over_best
from campaigns.fuzz.http2 import RECORDINGS, attacked, damaged, recordings
from campaigns.mixed import load, serve_mixed
from campaigns.soak.slopes import Series, slope
from campaigns.tenants.campaign import FOREIGN, OWN, SHARED, ask, subject
from campaigns.tenants.graphs import MIXES, Drawn, draw
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess


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


MAX_GROWTH_BYTES = 256 << 20


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_no_damage_stops_the_server(count: int, *, tls: bool) -> None:
    before = psutil.Process().memory_info().rss
    async with attacked(tls=tls) as target:
        for seed in range(count):
            await target.attack(seed)
            if seed % 50 == 49:
                await target.check()
                assert target.findings == [], seed
    assert psutil.Process().memory_info().rss - before < MAX_GROWTH_BYTES


def test_the_recordings_are_whole_and_damage_follows_its_seed() -> None:
    assert len(recordings()) == len(list(RECORDINGS.iterdir())) == 3
    first, again, other = (damaged(random.Random(seed), recordings()[0]) for seed in (1, 1, 2))
    assert first == again != other


HOUR_S = 3600.0


def series(growth_an_hour: float, noise: float = 0.0, seed: int = 1) -> Series:
    """An hour of samples around 100 MB, every two seconds."""
    chance = random.Random(seed)
    return [
        (
            float(second),
            1e8 * (1 + growth_an_hour * second / HOUR_S + noise * chance.uniform(-1, 1)),
        )
        for second in range(0, 3600, 2)
    ]


def test_a_constant_does_not_grow() -> None:
    found = slope(series(0.0))

    assert (found.an_hour, found.least, found.most) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_the_slope_lies_in_its_interval_and_noise_is_no_leak(seed: int) -> None:
    found = slope(series(0.0, noise=0.05, seed=seed))

    assert found.least < 0.0 < found.most
    assert not found.is_above(0.01)


@pytest.mark.parametrize("growth", [0.03, 0.1, 1.0])
def test_a_leak_is_found_in_noise(growth: float) -> None:
    found = slope(series(growth, noise=0.02))

    assert found.is_above(0.01)
    assert found.least < growth / (1 + growth / 2) < found.most


def test_a_peak_is_no_leak() -> None:
    peaked = [(second, value * (3 if 2000 < second < 2300 else 1)) for second, value in series(0.0)]

    assert not slope(peaked).is_above(0.01)


def test_a_short_series_says_nothing() -> None:
    assert not slope([(0.0, 1.0), (1.0, 100.0)]).is_above(0.01)


@pytest.mark.parametrize("runs", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_call_of_a_mixed_plan_hangs_though_callers_leave(runs: int, tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "cnn.onnx")
    server = ServerProcess(tmp_path / "store", BRAID_THREADS="2", BRAID_LOG_LEVEL="INFO")
    try:
        serve_mixed(server, path)
        seen = load(server, path, runs, callers=16, seed=runs)
    finally:
        server.end()

    assert seen["broken"] == []
    assert sum(seen["outcomes"].values()) == runs
    assert seen["outcomes"]["OK"] > runs / 10
    assert seen["outcomes"]["CANCELLED"] > runs / 10


def mixes_rows(drawn: Drawn, seed: int) -> bool:
    """Whether a row is answered otherwise beside others, of which one is loud and one has a NaN."""
    onnx.checker.check_model(drawn.model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(
        drawn.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x: Array = np.random.default_rng(seed).normal(size=(8, *drawn.row)).astype(np.float32)
    if drawn.mixes:
        x[2] *= 3000
        x[3].flat[0] = np.nan
    together = session.run(None, {"x": x})
    return any(
        each.shape[1:] != alone.shape[1:]
        or len(each) != len(x)
        or not np.allclose(each[row], alone[0], 1e-3, 1e-4 * max(1, abs(alone).max()))
        for row in (0, 1, 4, 7)
        for each, alone in zip(together, session.run(None, {"x": x[row : row + 1]}), strict=True)
    )


def test_graphs_of_even_seeds_keep_rows_apart() -> None:
    drawn = {seed: draw(seed) for seed in range(0, 120, 2)}

    mixing = [seed for seed, each in drawn.items() if not each.is_fixed and mixes_rows(each, seed)]

    assert not any(each.mixes for each in drawn.values())
    assert mixing == []


@pytest.mark.parametrize("name", MIXES)
def test_each_mix_lets_rows_influence_each_other(name: str) -> None:
    drawn = [draw(seed, (name,)) for seed in range(12)]

    mixing = [mixes_rows(each, seed) for seed, each in enumerate(drawn) if not each.is_fixed]

    assert sum(mixing) > len(mixing) / 2


def test_graphs_of_odd_seeds_have_all_mixes() -> None:
    assert {name for seed in range(1, 200, 2) for name in draw(seed).mixes} == set(MIXES)


def test_an_answer_with_the_numbers_of_another_request_is_a_finding(tmp_path: Path) -> None:
    one = subject(0)
    (x, right, near), (_, other, _) = [
        question for asked in one.asked for question in asked if len(question[0]) == 1
    ][:2]
    file = tmp_path / "model.onnx"
    file.write_bytes(one.data)
    with (
        ServerProcess(tmp_path / "store").start() as server,
        server.register({one.name: file}).client() as client,
    ):
        assert ask(client, one, (x, right, near)) == [OWN]
        assert ask(client, one, (x, other, near)) == [FOREIGN]
        assert SHARED not in ask(client, one, (x[:0], right, near))
