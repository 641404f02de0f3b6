"""What exported programs hold beside operators on tensors, and what other runtimes get of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.importer.host.report import MODEL_FILE, read_report
from tests.engine.importer.running import import_here
from tests.engine.pt2.programs import imported, run, save


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(x.shape[0], 6, 4, 2))
    return torch.view_as_real(pairs * turns).flatten(2)


HOLDING: Mapping[str, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]] = {
    "rotary_positions": (torch.polar(torch.ones(6, 4), torch.rand(6, 4)), rotated),
    "complex128": (torch.randn(8, dtype=torch.complex128), lambda x, w: (x * w).abs().float()),
    "float8": (torch.randn(8, 8).to(torch.float8_e4m3fn), lambda x, w: x @ w.float()),
    "bfloat16": (torch.randn(8).bfloat16(), lambda x, w: x * w),
    "uint16": (torch.arange(8).to(torch.uint16), lambda x, w: x + w.float()),
}


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, (weight, _) in HOLDING.items():
            self.register_buffer(f"of_{name}", weight)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            name: function(x, getattr(self, f"of_{name}"))
            for name, (_, function) in HOLDING.items()
        }


def test_weights_of_any_element_type_are_read(tmp_path: Path) -> None:
    module = Holding()
    template, weights = imported(save(module, [torch.randn(2, 6, 8)], tmp_path / "m.pt2"))

    x = torch.randn(3, 6, 8)
    results = run(template, weights, [x])
    for name, expected in module(x).items():
        torch.testing.assert_close(results[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["argument", "result"])
def test_complex_arguments_and_results_are_pairs_of_reals(what: str, tmp_path: Path) -> None:
    pairs = torch.randn(3, 4, 2)
    given = torch.view_as_complex(pairs) if what == "argument" else pairs  # a view of other reals
    function = torch.abs if what == "argument" else torch.view_as_complex
    upload = save(Function(lambda z: function(z) * 2), [given], tmp_path / "m.pt2")

    template, weights = imported(upload)

    (result,) = run(template, weights, [pairs]).values()
    expected = function(given) * 2
    expected = torch.view_as_real(expected) if expected.is_complex() else expected
    torch.testing.assert_close(result, expected)
    assert read_report(import_here(upload, tmp_path / "artefact")).verified.batches


def test_a_product_along_an_axis_of_any_length_is_refused_with_its_cause(tmp_path: Path) -> None:
    path, axes = tmp_path / "m.pt2", {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    function = Function(lambda x: x.cumprod(1))
    torch.export.save(
        torch.export.export(function, (torch.randn(2, 5),), dynamic_shapes=(axes,)), path
    )

    with pytest.raises(ModelImportError, match="cumprod has no form for an axis of any length"):
        imported(path)


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
