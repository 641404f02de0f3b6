"""Callers and their load, and the files of reports."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from benchmarks.environment import describe
from benchmarks.load.children import free_ports, read_line, running
from benchmarks.networks.one_operator import write_scaled
from benchmarks.peers.hosting.contract import SERVERS
from benchmarks.peers.load.client import Job, client_process
from benchmarks.peers.load.loops import WRONG
from benchmarks.peers.load.tensors import Question, write_questions
from benchmarks.reports import write_report

X = np.arange(192, dtype=np.float32).reshape(1, 3, 8, 8)


@pytest.mark.parametrize("rate_per_s", [None, 200.0], ids=["closed", "open"])
@pytest.mark.parametrize("factor", [1.0, 2.0], ids=["right", "wrong"])
def test_an_echo_is_asked_by_several_clients_and_its_answers_are_checked(
    tmp_path: Path, rate_per_s: float | None, factor: float
) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, str(SERVERS / "echo/serve.py"), "--port", str(port)]
    for name in ("--model", "--name", "--threads", "--batch-sizes", "--folder"):
        command += [name, "1"]
    questions = [Question({"x": X}, {"y": factor * X}, tolerance=0.0)]
    job = Job(
        address=f"127.0.0.1:{port}",
        model="echo",
        questions=str(write_questions(tmp_path / "questions.npz", questions)),
        clients=5,
        warmup_s=0.05,
        measure_s=1.0,
        rate_per_s=rate_per_s,
    )

    with running(command) as server, client_process() as clients:
        assert read_line(server) == "READY\n"
        samples = clients.run(job)

    assert samples.seconds == 1.0
    if factor == 1.0:
        assert samples.errors == {}
        assert min(samples.latency_us) > 0
    else:
        assert set(samples.errors) == {WRONG}
        assert samples.latency_us == []
    if rate_per_s is not None:  # Poisson, mean 200: beyond 5 standard deviations
        assert 120 < len(samples.latency_us) + samples.errors.total() < 280


def test_the_model_of_one_product_doubles_any_number_of_rows(tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(write_scaled(tmp_path / "m.onnx", X.shape[1:], 2.0))
    x = np.concatenate([X, -X])
    (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(y), 2.0 * x)


def test_a_report_with_its_environment_tells_the_distance_of_cores_twice(tmp_path: Path) -> None:
    environment = describe()
    facts = {"cores", "nearest_ns", "farthest_ns"}

    write_report(tmp_path / "report.json", {"environment": environment, "rows": []})

    written = json.loads((tmp_path / "report.json").read_text())["environment"]
    assert set(written["core_distance"]) == set(written["core_distance_at_end"]) == facts
    assert "core_distance_at_end" not in environment
