"""The graphs of the campaign of tenants mix rows or keep them apart, as ONNX Runtime shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from braid_client.tensors import Array
from campaigns.tenants.campaign import FOREIGN, OWN, SHARED, ask, subject
from campaigns.tenants.graphs import MIXES, Drawn, draw
from tests.service.server_process import ServerProcess


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
    server = ServerProcess(tmp_path / "store").start()
    try:
        with server.client() as client:
            client.register(one.name, one.data, batch_sizes=[1], planner="sequential", wait=True)

            assert ask(client, one, (x, right, near)) == [OWN]
            assert ask(client, one, (x, other, near)) == [FOREIGN]
            assert SHARED not in ask(client, one, (x[:0], right, near))
    finally:
        server.end()
