from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest
import torch

import braid
from braid.core.errors import InvalidArtefact, InvalidRequest, InvalidTensor, PreconditionFailed
from tests.library.conftest import import_ahead
from tests.models.external_data import in_several_files
from tests.models.small import by_values
from tests.service.server_process import ServerProcess

Rows = np.ndarray[Any, Any]


def rows(count: int, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def reference(model: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("count", [1, 2, 4, 6, 9])
def test_any_number_of_rows_is_what_onnxruntime_says(
    net: braid.Network, reference: onnxruntime.InferenceSession, count: int
) -> None:
    x = rows(count)

    found = net(x)

    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, reference.run(None, {"x": x})[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sizes", [(), (3, 4), pytest.param((1, 8), marks=pytest.mark.ci)])
def test_rows_are_cut_and_padded_whatever_the_sizes(
    model: Path, store: Path, reference: onnxruntime.InferenceSession, sizes: tuple[int, ...]
) -> None:
    with braid.compile(model, batch_sizes=sizes, planner="sequential", store=store) as net:
        assert set(sizes) <= set(net.batch_sizes)
        for count in range(1, 34):
            x = rows(count, seed=count)
            expected = reference.run(None, {"x": x})[0]
            np.testing.assert_allclose(net(x), expected, rtol=1e-3, atol=1e-4)


def test_a_model_in_several_files_is_compiled_by_its_name(tmp_path: Path, store: Path) -> None:
    path = in_several_files(tmp_path, "model.onnx", "model.onnx.data")
    expected = onnxruntime.InferenceSession(path).run(None, {"x": rows(2)})[0]

    with braid.compile(path, batch_sizes=[1], planner="sequential", store=store) as net:
        np.testing.assert_allclose(net(rows(2)), expected, rtol=1e-3, atol=1e-4)

    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(InvalidRequest, match=r"'model\.onnx\.data', which is missing"):
        braid.compile(path, store=store)


def test_outputs_are_the_kind_of_array_that_came(net: braid.Network) -> None:
    x = rows(1)

    by_name, as_tensor = net({"x": x}), net(torch.from_numpy(x))

    assert isinstance(by_name, np.ndarray)
    assert isinstance(as_tensor, torch.Tensor)
    assert np.array_equal(by_name, as_tensor.numpy())
    as_tensor += 1  # an ordinary tensor of the caller's own
    assert np.array_equal(by_name, net(np.asfortranarray(x)))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (np.zeros((1, 3, 16, 8), np.float32), "axis 3 must be 16"),
        (np.zeros((1, 3, 16, 16)), "has dtype 'FP64', the model takes FP32"),
        ({"z": np.zeros(1, np.float32)}, "the model has no input 'z'"),
        ([[1.0]], "is a list; give a numpy array or a torch tensor"),
        (np.array(["a"]), "has dtype 'BYTES', the model takes FP32"),
        (np.array(["2026-01-01"], "datetime64[D]"), "no model takes"),
    ],
)
def test_wrong_inputs_are_refused_as_a_server_does(
    net: braid.Network, given: Any, problem: str
) -> None:
    with pytest.raises(InvalidTensor, match=problem):
        net(given)


def test_no_rows_give_no_rows(net: braid.Network) -> None:
    assert net(np.zeros((0, 3, 16, 16), np.float32)).shape == (0, 4, 16, 16)
    with pytest.raises(InvalidTensor, match="axis 1 must be 3"):
        net(np.zeros((0, 0, 16, 16), np.float32))


def test_values_that_no_row_has_are_refused_and_padding_has_none_of_them(
    store: Path, tmp_path: Path
) -> None:
    ids, by = np.array([[0, 1, -3, 9]] * 3), np.array([[1, -1, 2, 3]] * 3)
    given = {"ids": ids, "lengths": np.array([4, 0, 2]), "by": by}
    model = import_ahead(by_values(tmp_path / "values.onnx"), store)

    with braid.compile(model, batch_sizes=[4], planner="sequential", store=store) as network:
        found = network(given)
        for name, wrong in (("ids", ids + 1), ("lengths", np.array([4, 5, 0])), ("by", by * 0)):
            with pytest.raises(InvalidRequest, match=r"operator '(look_up|turn|divide)' .* cannot"):
                network({**given, name: wrong})

    assert np.array_equal(found["quotients"], [[0, -1, -1, 3]] * 3)


def test_threads_may_call_at_once(net: braid.Network) -> None:
    batches = [rows(1 + seed % 5, seed) for seed in range(40)]
    alone = [net(x) for x in batches]

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(net, batches))

    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_notebook_shows_the_timeline_of_a_schedule(net: braid.Network) -> None:
    assert net.schedule._repr_svg_().startswith("<svg")
    assert net.schedules[4].plan_id in net.schedules[4]._repr_html_()
    assert "batch sizes 1, 4" in repr(net)


def test_a_saved_network_runs_the_same_plans(net: braid.Network, tmp_path: Path) -> None:
    x = rows(3)
    net.save(tmp_path / "saved")

    with braid.load(tmp_path / "saved") as loaded:
        assert loaded.plan_ids == net.plan_ids
        assert np.array_equal(loaded(x), net(x))
    with pytest.raises(PreconditionFailed, match="closed"):
        loaded(x)
    with pytest.raises(FileExistsError):
        net.save(tmp_path / "saved")


@pytest.mark.skipif(len(psutil.Process().cpu_affinity()) < 2, reason="needs another device")
def test_plans_of_another_device_are_not_used(net: braid.Network, tmp_path: Path) -> None:
    net.save(tmp_path / "saved")
    core = min(psutil.Process().cpu_affinity())

    with pytest.warns(UserWarning, match="runs sequentially here"):
        loaded = braid.load(tmp_path / "saved", device=f"cpu:{core}")

    with loaded:
        np.testing.assert_allclose(loaded(rows(2)), net(rows(2)), rtol=1e-3, atol=1e-4)
        assert set(loaded.plan_ids.values()) == {"sequential"}
        with pytest.raises(PreconditionFailed, match="no schedule"):
            _ = loaded.schedule


def test_a_changed_file_of_a_saved_network_is_refused(net: braid.Network, tmp_path: Path) -> None:
    net.save(tmp_path / "saved")
    (tmp_path / "saved/artefact/graph.json").write_text("{}")

    with pytest.raises(InvalidArtefact):
        braid.load(tmp_path / "saved")


def test_a_folder_whose_description_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "network.json").write_bytes(b"\xff{")

    with pytest.raises(InvalidArtefact, match=r"network\.json"):
        braid.load(tmp_path)


def test_a_server_on_the_same_store_runs_the_same_plans_with_the_same_outputs(
    net: braid.Network, model: Path, store: Path
) -> None:
    x = rows(4)
    with (
        ServerProcess(
            store, BRAID_SIDE_BY_SIDE="false", BRAID_PLAN_EXPLORE_SHARE="0"
        ).start() as server,
        server.client() as client,
    ):
        assert {each.state for each in client.models()} <= {"UNLOADED", "FAILED"}
        client.register("cnn", model, batch_sizes=[1, 4], wait=True)
        for count in (1, 4):
            answer = client.infer("cnn", {"x": x[:count]})
            rode = answer.batch_size  # a single row in a larger batch, if that was faster
            assert answer.plan_id == net.plan_ids[rode]
            padded = np.concatenate([x[:count], np.zeros_like(x[count:rode])])
            assert np.array_equal(answer.outputs["y"], net(padded)[:count])


def test_a_call_ends_the_openmp_team_of_its_caller(net: braid.Network) -> None:
    """Beside it the threads of the network would sleep at each of their barriers."""

    def threads() -> set[int]:
        return {thread.id for thread in psutil.Process().threads()}

    def call() -> tuple[set[int], set[int]]:
        net(rows(1))
        before = threads()
        torch.set_num_threads(2)
        torch.ones(1 << 22).add_(1)
        team = threads() - before
        net(rows(1))
        return team, team & threads()

    with ThreadPoolExecutor(1) as caller:
        team, left = caller.submit(call).result()

    assert len(team) == 1
    assert not left
