"""Calls of plans that mix engines end, whatever their callers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.mixed import load, serve_mixed
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess


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
