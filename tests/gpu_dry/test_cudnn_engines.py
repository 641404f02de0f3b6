"""cuDNN's own answer to which engines it has for an H100, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.gpu_dry import cudnn_engines
from tests.gpu_dry.cudnn_engines import FUSIONS, LAYOUTS, PRECISIONS, SHAPES

CUDNN = Path(torch.__file__).parents[1] / "nvidia/cudnn"


@pytest.fixture(scope="module")
def engines() -> dict[tuple[str, ...], tuple[int, bool]]:
    """By type, layout, fusion and shape: how many engines, and whether one could be built."""
    real = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    script = Path(cudnn_engines.__file__)
    command: list[str | Path] = [sys.executable, script, CUDNN, script.with_name("h100.json")]
    done = subprocess.run(command, env=real, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, done.stdout.splitlines())
    return {tuple(question): (count, is_built) for *question, count, is_built in rows}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fused_convolutions_have_engines_in_every_precision_and_layout(
    engines: dict[tuple[str, ...], tuple[int, bool]], precision: str
) -> None:
    for key in product([precision], LAYOUTS, FUSIONS, SHAPES):
        count, is_built = engines[key]
        assert count > 0, key
        assert is_built, key


def test_tensor_cores_add_engines(engines: dict[tuple[str, ...], tuple[int, bool]]) -> None:
    for precision, *question in engines:
        if precision == "fp32":
            assert engines["fp32", *question][0] < engines["tf32", *question][0]
