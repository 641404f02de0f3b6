"""Requests whose extents differ where the file has one symbol: what ONNX Runtime makes of them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from braid_client import InvalidArgument
from tests.models.extents import CASES
from tests.models.graphs import parsed
from tests.service.server_process import ServerProcess

Feeds = Mapping[str, np.ndarray[Any, Any]]

TOWERS = parsed(
    """(float[batch, 4] x, float[batch, 3] t) => (float[batch, 4] u, float[batch, 3] v)
    { u = Tanh(x)  v = Exp(t) }"""
)
"""Rows are apart, so requests of equal extents share batches."""

SHARED = parsed(
    """(float[N, 4] x, float[N, N] z) => (float[N, 4] y)
    { m = ReduceMean<axes=[1], keepdims=1>(z)  y = Add(x, m) }"""
)
DIVIDED = parsed("(int32[N, 1] a, int32[N] b) => (int32[N, N] y) { y = Div(a, b) }")


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


def right(model: Any, feeds: Feeds) -> dict[str, np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def imported(shared: ServerProcess, model: Any, file: Path) -> Path:
    """Write the file of a model, whose artefact the server has then."""
    file.write_bytes(model.SerializeToString())
    shared.import_ahead(file)
    return file


def test_extents_that_differ_are_answered_as_by_onnx_runtime(
    shared: ServerProcess, tmp_path: Path
) -> None:
    """Also those that the file does not state, or states otherwise: whoever else asks."""
    towers = [{"x": numbers(b, 4), "t": numbers(t, 3)} for b in (1, 2, 5) for t in (1, 4, 5)]
    square = [{"x": numbers(n, 4), "z": numbers(n, k)} for n, k in ((2, 7), (3, 3), (1, 2))]
    asked: list[tuple[str, Any, Feeds]] = [("towers", TOWERS, feeds) for feeds in towers * 6]
    asked += [("shared", SHARED, feeds) for feeds in square * 3]
    stated = {"mask": CASES["a mask of all rows"], "head": CASES["the first 300"]}
    for name, case in stated.items():
        feeds_of = (feeds for seed in range(8) for feeds in case.feeds(seed))
        asked += [(name, case.build(), feeds) for feeds in feeds_of]
    models = {name: model for name, model, _ in asked}
    with shared.client() as client:
        for name, model in models.items():
            file = imported(shared, model, tmp_path / name)
            sizes = [4] if name in stated else [1, 4]
            client.register(name, file, planner="sequential", batch_sizes=sizes, wait=True)
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda one: client.infer(one[0], one[2]).outputs, asked)
            for (name, model, feeds), outputs in zip(asked, answers, strict=True):
                error = 1e-4 if name in stated else 1e-5
                for output, wanted in right(model, feeds).items():
                    assert outputs[output].shape == wanted.shape
                    np.testing.assert_allclose(outputs[output], wanted, error, error / 10)

        assert client.model("towers").batched
        with pytest.raises(InvalidArgument, match=r"(?i)broadcast|dimension|incompatible"):
            client.infer("shared", {"x": numbers(3, 4), "z": numbers(2, 5)})
        for name in models:
            client.delete(name)


def test_extents_that_differ_end_no_worker(shared: ServerProcess, tmp_path: Path) -> None:
    least, restarts = np.iinfo(np.int32).min, "braid_worker_restarts_total"
    before = shared.metric(restarts)
    with shared.client() as client:
        divided = imported(shared, DIVIDED, tmp_path / "divided")
        client.register("divided", divided, planner="sequential", batch_sizes=[1], wait=True)
        a = np.full((2, 1), least, np.int32)
        for b in ([-1, -1], [1, -1, 2]):
            outputs = client.infer("divided", {"a": a, "b": np.array(b, np.int32)}).outputs
            assert outputs["y"].tolist() == [[least if abs(x) == 1 else least // x for x in b]] * 2
        client.delete("divided")
    assert shared.metric(restarts) == before
