"""cuDNN's own answer to which engines it has for an H100, without a GPU."""

from __future__ import annotations

import os
import subprocess
from itertools import product

import pytest

from tests.gpu_dry.__main__ import ENGINES, HERE

FUSIONS = ("conv", "conv-relu", "conv-add-relu")


@pytest.fixture(scope="module")
def engines() -> dict[tuple[str, ...], tuple[int, bool]]:
    """By type, layout, fusion and shape: how many engines, and whether one could be built."""
    real = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    command = [ENGINES, HERE / "h100.json"]
    done = subprocess.run(command, env=real, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {tuple(row[:4]): (int(row[4]), row[5] == "1") for row in rows}


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_fused_convolutions_have_engines_in_every_precision_and_layout(
    engines: dict[tuple[str, ...], tuple[int, bool]], precision: str
) -> None:
    shapes = {key[3] for key in engines}
    assert len(shapes) == 6

    for key in product([precision], ["nchw", "nhwc"], FUSIONS, shapes):
        count, is_built = engines[key]
        assert count > 0, key
        assert is_built, key


def test_tensor_cores_add_engines(engines: dict[tuple[str, ...], tuple[int, bool]]) -> None:
    for precision, *question in engines:
        if precision == "fp32":
            assert engines["fp32", *question][0] < engines["tf32", *question][0]
