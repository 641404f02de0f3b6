"""Extents that a file does not state, or states otherwise, through the whole service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.models.extents import CASES, Feed
from tests.service.server_process import ServerProcess

NAMES = {"mask": "a mask of all rows", "head": "the first 300"}


@pytest.fixture(scope="module")
def server(
    shared: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with shared.client() as client:
        for name, case in NAMES.items():
            path = tmp_path_factory.mktemp("extents") / "model.onnx"
            path.write_bytes(CASES[case].build().SerializeToString())
            client.register(name, path, planner="sequential", batch_sizes=[4], wait=True)
        yield shared
        for name in NAMES:
            client.delete(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_does_not_depend_on_who_else_asks(server: ServerProcess, name: str) -> None:
    case = CASES[NAMES[name]]
    session = onnxruntime.InferenceSession(case.build().SerializeToString())
    feeds = [feed for seed in range(8) for feed in case.feeds(seed)]

    def ask(feed: Feed) -> np.ndarray[Any, Any]:
        with server.client() as client:
            return client.infer(name, feed).outputs["y"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, feeds))

    for feed, answer in zip(feeds, answers, strict=True):
        np.testing.assert_allclose(answer, session.run(None, dict(feed))[0], rtol=1e-4, atol=1e-5)
