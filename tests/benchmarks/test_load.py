"""The load generator against the echo server, both as the processes that a benchmark uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.load.children import ChildFailed
from benchmarks.load.processes import echo_endpoint, load_generators
from benchmarks.load.records import Endpoint, Job, Samples
from benchmarks.load.results import Load, Turn, compare, percentile, summarise, table
from benchmarks.networks.one_operator import write_scaled
from benchmarks.serving import SCALE, SHAPE


def job_for(endpoint: Endpoint, clients: int) -> Job:
    return Job(
        address=endpoint.address,
        model=endpoint.model,
        scale=endpoint.scale,
        shape=(1, 3, 8, 8),
        clients=clients,
        warmup_s=0.05,
        measure_s=0.2,
        timeout_s=10.0,
    )


def test_clients_in_several_processes_are_answered_and_counted_together() -> None:
    def run(clients: int) -> Samples:
        job = job_for(endpoint, clients)
        while len((samples := generators.run(job)).latency_us) <= 10:  # it had no core for long
            job = replace(job, measure_s=2 * job.measure_s)
            assert job.measure_s < 120
        return samples

    with echo_endpoint() as endpoint, load_generators(2) as generators:
        alone, together = run(1), run(5)

    for samples in (alone, together):
        assert samples.errors == {}
        assert samples.seconds >= 0.2
        assert min(samples.latency_us) > 0
    assert together.seconds * 5 * 1e6 >= sum(together.latency_us)


def test_a_wrong_answer_ends_the_benchmark() -> None:
    with echo_endpoint() as endpoint, load_generators(1) as generators:
        wrong = replace(job_for(endpoint, 1), scale=2.0)
        with pytest.raises(ChildFailed):
            generators.run(wrong)


def test_the_model_of_one_product_doubles_any_number_of_rows(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(write_scaled(tmp_path / "model.onnx", SHAPE[1:], SCALE))
    x = np.arange(2 * np.prod(SHAPE), dtype=np.float32).reshape(2, *SHAPE[1:])
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(y), SCALE * x)


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7


def turn(endpoint: str, round_number: int, latency_us: int) -> Turn:
    samples = Samples(seconds=2.0, latency_us=[latency_us] * 4, errors=Counter())
    return summarise(Endpoint(endpoint, "", "", 1.0), Load(1), round_number, samples)


def test_ratios_are_of_the_medians_over_the_rounds() -> None:
    echo = [turn("echo", number, latency) for number, latency in enumerate([100, 100, 900])]
    braid = [turn("braid", number, latency) for number, latency in enumerate([150, 120, 160])]

    found = {row.endpoint: row for row in compare([*braid, *echo])}

    assert found["braid"].ratio["p50_us"] == 1.5
    assert found["braid"].ratio["requests_per_s"] == 1.0
    assert found["braid"].p50_ratio_by_round == [1.5, 1.2, pytest.approx(160 / 900)]
    assert found["echo"].ratio["p50_us"] == 1.0
    assert "1.50" in table(list(found.values()))


def test_an_open_loop_offers_its_rate_and_counts_from_when_requests_were_due() -> None:
    with echo_endpoint() as endpoint, load_generators(2) as generators:
        job = replace(job_for(endpoint, 4), rate_per_s=200.0, measure_s=1.0)
        samples = generators.run(job)

    assert samples.errors == {}
    assert samples.seconds == 1.0
    assert 120 < len(samples.latency_us) < 280  # Poisson, mean 200: beyond 5 standard deviations
    assert min(samples.latency_us) > 0
