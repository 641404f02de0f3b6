"""What exported programs hold beside operators on tensors, and what other runtimes get of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from braid.core.errors import UnsupportedOperators
from braid.engine.importer.host.report import MODEL_FILE, read_report
from tests.engine.importer.running import import_here
from tests.engine.pt2.programs import imported, run, save


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def masked(x: Tensor) -> Tensor:
    """Attention by a mask that two index tensors read, as transformers 5 writes it."""
    mask = (x[..., 0] > -1) | torch.eye(6, dtype=torch.bool)[0]
    rows = torch.arange(x.shape[0])[:, None, None, None]
    keys = torch.arange(6)[None, None, None, :]
    q = x[:, None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask[rows, keys])[:, 0]


def without_keys(x: Tensor) -> Tensor:
    """Causal attention that may forbid the first queries all keys, as padding on the left does."""
    allowed = torch.ones(6, 6, dtype=torch.bool).tril() & (x[:, None, None, :, 0] > 0)
    q = x[:, None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ torch.eye(8)).float()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 2:4] = 1.5
    y[:, 0] += x[:, 1]
    return y.masked_fill_(y > 0.9, 0.25)


def grouped(x: Tensor) -> Tensor:
    q = x.reshape(-1, 4, 6, 2)
    return F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True)


PROGRAMS: Mapping[str, Callable[[Tensor], Any]] = {
    "a mask read by two indices": masked,
    "queries without keys": without_keys,
    "autocast": autocast,
    "changes in place": in_place,
    "grouped queries": grouped,
    "sort": lambda x: dict(zip(("values", "order"), torch.sort(x, 1), strict=True)),
    "variance": lambda x: x.var(1),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "meshgrid": lambda x: x + sum(torch.meshgrid(torch.arange(6), torch.arange(8), indexing="ij")),
    "distances": lambda x: torch.cdist(x, x),
    "windows of unlike sizes": lambda x: F.adaptive_max_pool1d(x, 3),
    "unfold": lambda x: x.unfold(1, 3, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_agrees_with_torch_at_another_batch(name: str, tmp_path: Path) -> None:
    function = PROGRAMS[name]
    template, weights = imported(
        save(Function(function), [torch.randn(4, 6, 8)], tmp_path / "m.pt2")
    )

    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1))
    expected = function(x)
    expected = expected if isinstance(expected, dict) else {"output": expected}
    results = run(template, weights, [x])

    assert list(results) == list(expected)
    for key, tensor in expected.items():
        torch.testing.assert_close(results[key], tensor, rtol=1e-4, atol=1e-5)


def test_results_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    function = Function(lambda x: {"y": x * 2, "hidden": None, "layers": 4})

    template, weights = imported(save(function, [torch.randn(2, 3)], tmp_path / "m.pt2"))

    x = torch.randn(2, 3)
    results = run(template, weights, [x])
    assert list(results) == ["y"]
    torch.testing.assert_close(results["y"], x * 2)


def test_a_result_may_be_called_like_an_argument_and_be_given_twice(tmp_path: Path) -> None:
    def function(x: Tensor) -> dict[str, Tensor]:
        y = x + 1
        return {"x": y, "again": y, "mul": x - 1, "same": x}

    template, weights = imported(save(Function(function), [torch.randn(2, 3)], tmp_path / "m.pt2"))

    x = torch.randn(2, 3)
    results = run(template, weights, [x])
    assert list(template.inputs) == ["x"]
    assert list(results) == ["x", "again", "mul", "same"]
    for key, tensor in function(x).items():
        torch.testing.assert_close(results[key], tensor)


def test_what_torch_onnx_cannot_write_is_named_with_the_page_of_pt2(tmp_path: Path) -> None:
    path = save(Function(torch.erfinv), [torch.randn(2, 5)], tmp_path / "m.pt2")

    with pytest.raises(UnsupportedOperators, match=r"erf_inv.*docs/pt2-operators\.md"):
        imported(path)


def test_other_runtimes_get_the_model_with_its_weights_exact(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    upload = save(module, [torch.randn(2, 8)], tmp_path / "m.pt2")

    artefact = import_here(upload, tmp_path / "artefact")

    assert MODEL_FILE in read_report(artefact).files
    session = onnxruntime.InferenceSession(artefact / MODEL_FILE)
    x = torch.randn(5, 8)
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, module(x).detach(), rtol=1e-5, atol=1e-6)
