"""A row's answer beside other rows of its batch, and what numbers outside the usual give."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid.core.precision import BF16
from braid_client import Client
from campaigns.exact.campaign import answers_of, offered, served
from campaigns.exact.checking import compared
from campaigns.exact.drawing import rows
from campaigns.exact.steps import Array
from tests.models.small import two_layers, written
from tests.service.exact.test_random_requests import EACH_FORM
from tests.service.server_process import ServerProcess

ROWS = 8  # the largest batch size


def joined(answers: list[Mapping[str, Array]]) -> Mapping[str, Array]:
    return {name: np.concatenate([one[name] for one in answers]) for name in answers[0]}


@pytest.mark.parametrize("form", EACH_FORM)
def test_neighbours_do_not_change_a_row(shared: ServerProcess, form: str, tmp_path: Path) -> None:
    if not offered(form):
        pytest.skip(f"the CPU does not compute in {form}")
    with shared.client() as client, served(shared, client, form, 4, tmp_path) as (name, network):
        x, others = (rows(network.drawn, ROWS, seed) for seed in (1, 2))
        spoiled = others.copy()
        for row, value in zip(spoiled[1:], [np.nan, np.inf, -np.inf, 3e38, np.nan], strict=False):
            row.flat[7] = value
        spoiled[0] = x[0]
        together = client.infer(name, {"x": x}).outputs
        beside_others = joined(
            [client.infer(name, {"x": np.concatenate([one, others[1:]])}).outputs
             for one in np.split(x, ROWS)]
        )  # fmt: skip
        beside_nothing = client.infer(name, {"x": spoiled}).outputs
        alone = joined([client.infer(name, {"x": one}).outputs for one in np.split(x, ROWS)])
        at_once = joined(answers_of(client, name, np.split(np.tile(x, (4, 1, 1, 1)), 4 * ROWS)))

    for answer in together:
        first = beside_others[answer][::ROWS]
        np.testing.assert_array_equal(first, together[answer])  # under the same plan
    assert compared(network, x, alone).outside == 0
    assert compared(network, np.tile(x, (4, 1, 1, 1)), at_once).outside == 0
    first_row = {answer: array[:1] for answer, array in beside_nothing.items()}
    assert compared(network, x[:1], first_row).outside == 0
    assert compared(network, spoiled, beside_nothing).outside == 0


def through_a_grid(path: Path, zero: int, dtype: type[np.uint8] | type[np.int8]) -> Path:
    """x [batch, 64] -> Q -> y, integers, and their DQ."""
    text = """(float[batch, 64] x) => (float[batch, 64] y)
    { q = QuantizeLinear(x, scale, zero)  y = DequantizeLinear(q, scale, zero) }"""
    return written(path, text, scale=np.float32(0.5), zero=np.array(zero, dtype))


@pytest.mark.parametrize(("zero", "dtype"), [(0, np.uint8), (131, np.uint8), (-7, np.int8)])
def test_numbers_outside_a_grid_become_its_ends_and_nan_the_least(
    shared: ServerProcess, zero: int, dtype: type[np.uint8] | type[np.int8], tmp_path: Path
) -> None:
    path = through_a_grid(tmp_path / "grid.onnx", zero, dtype)
    ties = np.arange(-24, 24, dtype=np.float32) / 4
    odd = [np.inf, -np.inf, np.nan, 1e30, -1e30, 3.4e38, 1e-42, -1e-42, -0.0, 2.0**31, -(2.0**31)]
    x = np.concatenate([ties, np.array(odd, np.float32), np.zeros(5, np.float32)])[None]
    with shared.register({"grid": path}).client() as client:
        y = client.infer("grid", {"x": x}).outputs["y"]
        finite = client.infer("grid", {"x": np.nan_to_num(x, nan=-1e30)}).outputs["y"]
        client.delete("grid")

    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(finite, wanted)


def test_nan_stays_nan_and_denormals_are_numbers(shared: ServerProcess, tmp_path: Path) -> None:
    path = two_layers(tmp_path / "layers.onnx", 16, 16)
    x = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    x[0, 3], x[1, 4], x[2, 5] = np.nan, np.inf, -np.inf
    x[3] *= 1e-40
    (wanted,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    shared.import_ahead(path)
    with shared.client() as client:
        plain = answer(client, path, "", x)
        narrow = answer(client, path, BF16, x) if offered("bf16") else None

    np.testing.assert_allclose(plain, wanted, rtol=1e-5, atol=1e-6)
    assert abs(plain[3]).max() > 0
    if narrow is not None:  # there, denormals may be zero
        np.testing.assert_array_equal(np.isnan(narrow), np.isnan(wanted))
        np.testing.assert_allclose(narrow[3:], wanted[3:], atol=0.05)


def answer(client: Client, path: Path, precision: str, x: Array) -> Array:
    client.register(
        "layers", path, batch_sizes=[len(x)], planner="sequential", precision=precision, wait=True
    )
    y = client.infer("layers", {"x": x}).outputs["y"]
    client.delete("layers")
    return y
