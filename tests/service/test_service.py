"""The main job, end to end: register, schedule, infer, look, delete; over real processes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from onnx import TensorProto

from braid.server.cli.main import main
from braid_client import Client
from tests.models.small import best_boxes, identity, open_length
from tests.service.server_process import ServerProcess

Models = dict[str, Path]


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_answers_are_those_of_onnxruntime(shared: ServerProcess, models: Models, rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 3, 16, 16)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(models["cnn"]).run(None, {"x": x})

    with shared.client() as client:
        result = client.infer("cnn", {"x": x})

    np.testing.assert_allclose(result.outputs["y"], expected, atol=1e-4 * np.abs(expected).max())
    assert result.batch_size in (1, 4)
    assert result.timing.total_us >= result.timing.compute_us > 0


def test_the_plan_that_ran_is_the_schedule_that_is_shown(shared: ServerProcess) -> None:
    with shared.client() as client:
        schedule, graph = client.schedule("cnn", batch=4)
        result = client.infer("cnn", {"x": np.zeros((4, 3, 16, 16), np.float32)})
        schedules = client.model("cnn").schedules
    summary = next(s for s in schedules if s.batch_size == 4)
    side_by_side = {s.side_by_side.plan_id for s in schedules if s.side_by_side}

    units = [unit for unit, *_ in schedule["plan"]["launches"]]
    assert sorted(units) == list(range(len(graph["operators"])))
    assert len(schedule["unit_names"]) == len(graph["operators"])
    assert summary.promoted == schedule["provenance"]["promoted"]
    assert summary.contest is not None
    tried = {candidate.plan_id for candidate in summary.contest.candidates}
    assert summary.plan_id in tried
    assert result.plan_id in {*(tried if summary.promoted else {"sequential"}), *side_by_side}


def test_health_answers_for_the_server_its_liveness_and_each_model(shared: ServerProcess) -> None:
    with grpc.insecure_channel(shared.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "liveness", "inference.GRPCInferenceService", "cnn", "embedding"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=120)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=120)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_who_watches_health_is_told_of_changes_though_another_watcher_left(
    shared: ServerProcess, models: dict[str, Path]
) -> None:
    status = health_pb2.HealthCheckResponse
    request = health_pb2.HealthCheckRequest(service="latecomer")
    with grpc.insecure_channel(shared.address) as channel, shared.client() as client:
        stub = health_pb2_grpc.HealthStub(channel)
        leaving, staying = stub.Watch(request), stub.Watch(request)
        assert [next(each).status for each in (leaving, staying)] == [status.SERVICE_UNKNOWN] * 2
        leaving.cancel()

        client.register(
            "latecomer", models["cnn"], batch_sizes=[1], planner="sequential", wait=True
        )
        next(answer for answer in staying if answer.status == status.SERVING)
        client.delete("latecomer")
        next(answer for answer in staying if answer.status == status.SERVICE_UNKNOWN)
        staying.cancel()


def test_a_server_on_its_own_lists_itself_as_the_one_node(shared: ServerProcess) -> None:
    with shared.client() as client:
        (node,) = client.nodes()

    assert node.alive
    assert node.answers
    assert node.address == shared.address
    assert any(key.startswith("cpu:") for key in node.device_keys)
    assert "Nodes" not in shared.http("/console/devices")


def test_metrics_tell_what_happened_and_a_made_up_name_makes_no_series(
    shared: ServerProcess,
) -> None:
    before = shared.metric("braid_requests_total", model="cnn", outcome="OK")
    with shared.client() as client:
        client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})
        with pytest.raises(Exception, match="made-up"):
            client.infer("made-up", {"x": np.zeros(1, np.float32)})

    assert shared.metric("braid_requests_total", model="cnn", outcome="OK") == before + 1
    assert shared.metric("braid_requests_total", outcome="NOT_FOUND") >= 1
    assert "made-up" not in shared.http("/metrics")
    assert shared.metric("braid_stage_measurements_total") > 0
    assert shared.metric("braid_schedule_latency_seconds", model="cnn", batch_size="4") > 0


def test_preparing_a_shape_is_told_apart_from_waiting(
    shared: ServerProcess, tmp_path: Path
) -> None:
    model = open_length(tmp_path / "open.onnx", TensorProto.FLOAT16)  # no session is known right
    labels = {"model": "open", "device": "cpu"}
    with client_for(shared, "open", model) as client:
        client.register("open", model, batch_sizes=[1], planner="sequential", wait=True)
        first, again = (
            client.infer("open", {"x": np.ones((1, 37), np.float16)}).timing for _ in range(2)
        )
        page = shared.http("/console/models/open")
        told = {
            name: shared.metric(f"braid_{name}", **labels)
            for name in (
                *("shapes_prepared_total", "shapes_kept", "shapes_dropped_total"),
                *("request_prepare_seconds_count", "request_prepare_seconds_sum"),
            )
        }
        lengths = range(100, 136)
        for length in lengths:
            client.infer("open", {"x": np.ones((1, length), np.float16)})
        kept = shared.metric("braid_shapes_kept", **labels)
        dropped = shared.metric("braid_shapes_dropped_total", **labels)

    assert first.prepare_us > again.prepare_us == 0
    assert first.queue_us + first.prepare_us + first.compute_us <= first.total_us
    assert told["request_prepare_seconds_sum"] == pytest.approx(first.prepare_us / 1e6)
    assert told["request_prepare_seconds_count"] == told["shapes_prepared_total"] == 1
    assert (told["shapes_kept"], told["shapes_dropped_total"]) == (1, 0)
    assert (kept, dropped) == (1 + len(lengths), 0)
    assert all(f"mean {phase}" in page for phase in ("queue", "preparing", "compute"))


Said = Callable[..., str]


@pytest.fixture
def said(shared: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command at the server, and return what it prints."""

    def run(*arguments: str) -> str:
        assert main([*arguments, "--address", shared.address]) == 0
        out = capsys.readouterr().out
        return out if "--json" in arguments else " ".join(out.split())

    return run


def listed_by(said: Said, name: str) -> Any:
    """What ``braid models --json`` says of a model."""
    (found,) = (model for model in json.loads(said("models", "--json")) if model["name"] == name)
    return found


@contextmanager
def client_for(shared: ServerProcess, name: str, file: Path) -> Iterator[Client]:
    """A client that registers a file, which is imported ahead; the model is deleted at the end."""
    shared.import_ahead(file)
    with shared.client() as client:
        try:
            yield client
        finally:
            client.delete(name)


def test_guessed_extents_stand_wherever_a_model_is_shown(
    shared: ServerProcess, tmp_path: Path, said: Said
) -> None:
    model = open_length(tmp_path / "guessed.onnx")
    register = ["register", "guessed", str(model), "--planner", "sequential", "--wait"]
    with client_for(shared, "guessed", model) as client:
        registered = said(*register)
        (shown,) = json.loads(said(*register, "--json"))
        listed = listed_by(said, "guessed")
        table, page = said("models", "guessed"), shared.http("/console/models/guessed")
        said(*register, "--input-shape", "x=1,48")
        asked = client.model("guessed")

    (extent,) = shown["guessed_extents"].values()
    assert listed["guessed_extents"] == shown["guessed_extents"] == {"length": extent}
    for text in (registered, table, page):
        assert f"scheduled for length={extent}, guessed" in text
        assert "other shapes are answered by ONNX Runtime where it was right" in text
    assert asked.version == "2"
    assert asked.guessed_extents == {}


def test_padding_stands_wherever_a_model_is_shown(
    shared: ServerProcess, tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    model = open_length(tmp_path / "padded.onnx")
    plain = ["register", "padded", str(model), "--planner", "sequential", "--wait"]
    register = [*plain, "--pad", "length=zeros"]
    with client_for(shared, "padded", model) as client:
        registered, table = said(*register), said("models", "padded")
        listed = listed_by(said, "padded")
        page = shared.http("/console/models/padded")
        said(*plain)
        (not_asked,) = client.model("padded").padding
        assert main([*plain, "--pad", "width=zeros", "--address", shared.address]) == 1

    for text in (registered, table, page):
        assert "length: padding is exact up to 512" in text
    (axis,) = listed["padding"]
    assert (axis["axis"], axis["exact"], axis["inputs"]) == ("length", True, {"x": "zeros"})
    assert axis["error"] == 0
    assert not not_asked.exact
    assert not_asked.reason == "nothing asks for it; errors: 0.0e+00 by zeros, 0.0e+00 by repeat"
    assert "pad names width; axes looked at in the import: length" in capsys.readouterr().err


def test_lengths_are_scheduled_and_shown(
    shared: ServerProcess, tmp_path: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    model = open_length(tmp_path / "lengths.onnx")
    register = ["register", "lengths", str(model), "--planner", "sequential", "--wait"]
    register += ["--pad", "length=zeros"]
    options = ("--batch-sizes", "1", "--lengths", "32,16")
    with client_for(shared, "lengths", model) as client:
        registered = said(*register, *options)
        for length in (16, 16, 32, 20):
            x = np.random.default_rng(length).standard_normal((1, length)).astype(np.float32)
            answer = client.infer("lengths", {"x": x})
            np.testing.assert_array_equal(answer.outputs["y"], 2 * x)
            assert (answer.plan_id != "onnxruntime") == (length in (16, 32))
        listed = listed_by(said, "lengths")
        table, page = said("models", "lengths"), shared.http("/console/models/lengths")
        shapes = [
            said("schedule", "show", "lengths", f"--shapes=length={length}") for length in (16, 32)
        ]
        labels = {"model": "lengths", "device": "cpu"}
        assert shared.metric("braid_lengths_scheduled", **labels) == 2
        for name in ("rows_padded_total", "padding_checked_total", "padding_wrong"):
            assert shared.metric(f"braid_{name}", **labels) == 0
        longer = shared.http("/console/schedules/lengths/1/1?shapes=length%3D32")
        assert main([*register, "--lengths", "16,600", "--address", shared.address]) == 1
        error = capsys.readouterr().err

    for text in (registered, table):
        assert "length: scheduled lengths: 16, 32" in text
    assert [plan["shapes"] for plan in listed["schedules"]] == ["length=16", "length=32"]
    rows = {"16": 2, "20": 1, "32": 1}
    assert listed["lengths"] == {"axis": "length", "rows": rows, "scheduled": [16, 32]}
    assert "Lengths of requests along length" in page
    assert "length=16" in shapes[0]
    assert "length=32" in shapes[1]
    assert "length=32" in longer
    assert "length 600 is out of range" in error


def test_a_model_of_one_image_takes_several_one_by_one(
    shared: ServerProcess, tmp_path: Path
) -> None:
    model = best_boxes(tmp_path / "best.onnx")
    corners = np.random.default_rng(0).random((3, 6, 2), np.float32)
    inputs = {
        "boxes": np.concatenate([corners, corners + 0.3], axis=2),
        "scores": np.random.default_rng(1).random((3, 1, 6), np.float32),
    }
    session = onnxruntime.InferenceSession(model)
    alone = [
        session.run(None, {name: rows[i : i + 1] for name, rows in inputs.items()})[0]
        for i in range(3)
    ]

    with client_for(shared, "best", model) as client:
        client.register("best", model, batch_sizes=[1, 4], planner="sequential", wait=True)
        answer = client.infer("best", inputs)
        shown = client.model("best")

    np.testing.assert_array_equal(answer.outputs["best"], np.concatenate(alone))
    assert [plan.batch_size for plan in shown.schedules] == [1]
    assert any("served one row at a time" in warning for warning in shown.warnings)


def test_a_model_without_operators_serves_too(shared: ServerProcess, tmp_path: Path) -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)

    with client_for(shared, "identity", model := identity(tmp_path / "i.onnx")) as client:
        client.register("identity", model, batch_sizes=[1, 4], wait=True)
        result = client.infer("identity", {"x": x})

    np.testing.assert_array_equal(result.outputs["y"], x)
    np.testing.assert_array_equal(result.outputs["c"], [1.5, 2.5])
