"""Requests whose extents differ where the file has one symbol: what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from braid_client import InvalidArgument
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


def test_extents_that_differ_are_answered_as_by_onnx_runtime(server: ServerProcess) -> None:
    towers = [{"x": numbers(b, 4), "t": numbers(t, 3)} for b in (1, 2, 5) for t in (1, 4, 5)]
    shared = [{"x": numbers(n, 4), "z": numbers(n, k)} for n, k in ((2, 7), (3, 3), (1, 2))]
    with server.start().client() as client:
        for name, model in (("towers", TOWERS), ("shared", SHARED)):
            client.register(name, model.SerializeToString(), batch_sizes=[1, 4], wait=True)
        asked = [("towers", TOWERS, feeds) for feeds in towers * 6]
        asked += [("shared", SHARED, feeds) for feeds in shared * 3]
        with ThreadPoolExecutor(8) as pool:
            answers = pool.map(lambda one: client.infer(one[0], one[2]).outputs, asked)
            for (_, model, feeds), outputs in zip(asked, answers, strict=True):
                for name, wanted in right(model, feeds).items():
                    assert outputs[name].shape == wanted.shape
                    np.testing.assert_allclose(outputs[name], wanted, 1e-5, 1e-6)

        assert client.model("towers").batched
        with pytest.raises(InvalidArgument, match=r"(?i)broadcast|dimension|incompatible"):
            client.infer("shared", {"x": numbers(3, 4), "z": numbers(2, 5)})


def test_extents_that_differ_end_no_worker(server: ServerProcess) -> None:
    least = np.iinfo(np.int32).min
    with server.start().client() as client:
        client.register("divided", DIVIDED.SerializeToString(), batch_sizes=[1], wait=True)
        a = np.full((2, 1), least, np.int32)
        for b in ([-1, -1], [1, -1, 2]):
            outputs = client.infer("divided", {"a": a, "b": np.array(b, np.int32)}).outputs
            assert outputs["y"].tolist() == [[least if abs(x) == 1 else least // x for x in b]] * 2
    assert server.metric("braid_worker_restarts_total") == 0
