"""Operators of torch against torch itself, at batches other than the exported one.

torch.onnx writes them; here are those that it decomposes, or that extents and attributes steer.
ONNX's operators themselves: tests/conformance.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.engine.importer.host.report import MODEL_FILE, read_report
from tests.engine.importer.running import import_here
from tests.engine.pt2.programs import Several, imported, run, save

Functions = Mapping[str, Callable[..., Any]]
_SEEDED = torch.Generator().manual_seed(5)


def constant(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_SEEDED)


W44, W8, W6, K = constant(4, 4, 3, 3), constant(8), constant(6), constant(5, 8)
IDS = torch.tensor([3, 0, 2])


def sign_or(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(x.abs() + 1.5)


UNARY: Functions = {
    "expm1": torch.expm1,
    "square": torch.square,
    "isinf": torch.isinf,
    "log1p": lambda x: sign_or(x, torch.log1p),
    "rsqrt": lambda x: sign_or(x, torch.rsqrt),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.25),
    "softplus": lambda x: F.softplus(x, 2.0),
    "logsigmoid": F.logsigmoid,
    "prelu": lambda x: F.prelu(x, W6),
    "glu": F.glu,
    "clamp_min": lambda x: x.clamp_min(0.1),
    "clamp_max": lambda x: torch.clamp_max(x, 0.1),
    "cast": lambda x: (x * 10).to(torch.int32).to(torch.float32),
    "half": lambda x: x.half().float(),
    "int_sin": lambda x: (x * 10).long().sin(),
    "normed": lambda x: F.layer_norm(x, (8,), W8, W8),
    "normed_plain": lambda x: F.layer_norm(x, (6, 8)),
    "rms": lambda x: F.rms_norm(x, (8,), W8),
    "pow": lambda x: x**2 + x.abs() ** 0.5,
    "fill": lambda x: torch.full_like(x, 3.0) + torch.zeros_like(x) + torch.ones_like(x),
}
BINARY: Functions = {
    "add": lambda x, y: x + y,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=2.5),
    "sub_alpha": lambda x, y: torch.sub(x, y, alpha=2),
    "rsub": lambda x, y: 1.5 - x,
    "div": lambda x, y: x / (y.abs() + 1) / 2,
    "int_div": lambda x, y: (x * 10).long() / 3,
    "floor_div": lambda x, y: torch.div(x, 0.3, rounding_mode="floor"),
    "int_floor_div": lambda x, y: (x * 10).long() // 3,
    "int_trunc_div": lambda x, y: torch.div((x * 10).long(), 3, rounding_mode="trunc"),
    "remainder": lambda x, y: x % 0.7,
    "fmod": lambda x, y: torch.fmod(x, 0.7),
    "maximum": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y) + torch.max(x, y),
    "pow": lambda x, y: (x.abs() + 0.1).pow(y),
    "compare": lambda x, y: ((x > y) | (x <= 0.1)) & (x != y) ^ (y >= 2),
    "where": lambda x, y: torch.where(x > y, x, y) + torch.where(x > 0, x, 0.5),
    "masked": lambda x, y: x.masked_fill(y > 0, -1.0).masked_fill(y < -1, float("-inf")),
    "bits": lambda x, y: ((x * 10).int() & 3) | (~(y * 10).int() ^ 5),
    "atan2": torch.atan2,
    "matmul_constant": lambda x, y: x @ K.t(),
    "einsum": lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None]),
    "causal": lambda x, y: F.scaled_dot_product_attention(
        x[:, None], y[:, None], x[:, None], is_causal=True
    ),
    "expand_as": lambda x, y: x[:, :1].expand_as(y) + y,
    "type_as": lambda x, y: (x > 0).type_as(y),
}


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


PROGRAMS: Functions = {
    "masked": masked,
    "without_keys": without_keys,
    "autocast": autocast,
    "in_place": in_place,
    "grouped": grouped,
    "sort": lambda x: torch.sort(x, 1)[0],
    "order": lambda x: torch.sort(x, 1)[1],
    "variance": lambda x: x.var(1),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x),
    "fft": lambda x: torch.fft.rfft(x).abs(),
    "meshgrid": lambda x: x + sum(torch.meshgrid(torch.arange(6), torch.arange(8), indexing="ij")),
    "distances": lambda x: torch.cdist(x, x),
    "windows_of_unlike_sizes": lambda x: F.adaptive_max_pool1d(x, 3),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "cumprod": lambda x: x.cumprod(-1) + x.cumprod(1, dtype=torch.float64).float(),
    "cumprod_of_integers": lambda x: (x > 0).int().cumprod(1) * 2,
    "conjugate": lambda x: torch.complex(x, x + 1).conj().imag.contiguous(),
}
SHAPES: Functions = {
    "view": lambda x: x.view(x.shape[0], -1),
    "flatten_all": lambda x: x.flatten(),
    "unflatten_middle": lambda x: x.unflatten(1, (2, 3)),
    "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(-1).squeeze(-1),
    "squeeze_all": lambda x: x.mean(0, keepdim=True)[:, :1].squeeze(),
    "expand": lambda x: x[:, None].expand(-1, 3, -1, -1),
    "repeat_more": lambda x: x[0].repeat(2, 1, 1, 1),
    "split_sizes": lambda x: x.split([1, 5], 1)[0],
    "unbind": lambda x: x.unbind(1)[3],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "flip": lambda x: x.flip(1, 2),
    "roll": lambda x: x.roll((2, -3), (1, 2)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=0.5),
    "pad_reflect": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "pad_edge": lambda x: F.pad(x, (2, 1), mode="replicate"),
    "pad_wrap": lambda x: F.pad(x, (2, 1), mode="circular"),
    "tril": lambda x: x.tril(1) - x.triu(-1),
    "mean_all": lambda x: x.mean((1, 2), keepdim=True),
    "sum_int": lambda x: (x > 0).sum(-1),
    "amax": lambda x: x.amax(1) - x.amin((1, 2), keepdim=True)[:, 0],
    "max": lambda x: x.max(1)[0] + x.min(1).indices,
    "argmax": lambda x: x.argmax(-1) - x.argmin(1, keepdim=True)[:, :, 0].argmax(-1, keepdim=True),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1) + x.norm(dim=2),
    "cumsum": lambda x: x.cumsum(1) + (x > 0).cumsum(2),
    "topk": lambda x: x.topk(3, dim=-1)[0],
    "topk_places": lambda x: x.topk(3, dim=-1, largest=False)[1],
    "any": lambda x: (x > 1).any(-1) ^ (x > -1).all(1).any(-1, keepdim=True),
    "index": lambda x: x[:, IDS],
    "arange": lambda x: torch.arange(x.shape[0]).float()[:, None] + torch.arange(2, 10, 2),
    "new": lambda x: x.new_zeros(x.shape[0], 2) + torch.ones(2) + x.new_full((2,), 4.0),
    "sizes": lambda x: x.reshape(x.shape[0] * 2, -1)[: x.shape[0]],
    "floordiv": lambda x: x.reshape(x.shape[0], 48)[:, : x.shape[1] * 8 // 5],
}
IMAGES: Functions = {
    "conv_same": lambda x: F.conv2d(x, W44, padding="same"),
    "conv_even_same": lambda x: F.conv2d(x, W44[:, :, :2, :2], padding="same"),
    "transposed1d": lambda x: F.conv_transpose1d(x.flatten(2), W44.flatten(2), stride=3),
    "batch_norm_plain": lambda x: F.batch_norm(x, W8[:4], W8[:4] ** 2),
    "group_norm": lambda x: F.group_norm(x, 2, W8[:4], W8[4:]),
    "instance_norm": lambda x: F.instance_norm(x, weight=W8[:4], bias=W8[4:]),
    "max_pool_ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "avg_pool_exclude": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "avg_pool_ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (3, 5)),
    "nearest_size": lambda x: F.interpolate(x, size=(5, 13)),
    "bilinear_corners": lambda x: F.interpolate(x, (5, 9), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "grid": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
}

GROUPS: Mapping[str, tuple[Functions, tuple[tuple[int, ...], ...]]] = {
    "unary": (UNARY, ((6, 8),)),
    "binary": (BINARY, ((6, 8), (6, 8))),
    "shapes": (SHAPES, ((6, 8),)),
    "programs": (PROGRAMS, ((6, 8),)),
    "images": (IMAGES, ((4, 8, 8),)),
}


def drawn(shapes: tuple[tuple[int, ...], ...], batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return [torch.randn(batch, *shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("group", GROUPS)
def test_agrees_with_torch_at_other_batches(group: str, tmp_path: Path) -> None:
    functions, shapes = GROUPS[group]
    path = save(Several(functions), drawn(shapes, 4), tmp_path / "several.pt2")
    template, weights = imported(path)

    for batch in (2, 5):
        inputs = drawn(shapes, batch)
        results = run(template, weights, inputs)
        for name, function in functions.items():
            expected = function(*inputs)
            assert results[name].dtype == expected.dtype, name
            assert results[name].shape == expected.shape, name
            close = torch.allclose(results[name], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
            assert close, name


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 7, batch_first=True)
        self.rnn = nn.RNN(7, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y, (h, c) = self.lstm(x)
        z, last = self.gru(y)
        w, _ = self.rnn(z.transpose(0, 1))
        return {"y": y, "h": h, "c": c, "z": z, "last": last, "w": w}


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("batch_first", [False, True])
def test_an_lstm_with_a_projection_agrees_with_torch(batch_first: bool, tmp_path: Path) -> None:
    module = nn.LSTM(8, 5, 2, proj_size=3, bidirectional=True, batch_first=batch_first).eval()
    path = save(module, [torch.randn(6, 4, 8)], tmp_path / "lstm.pt2", open_batch=batch_first)
    template, weights = imported(path)

    x = torch.randn(3 if batch_first else 6, 4, 8)
    y, (h, c) = module(x)
    for result, expected in zip(run(template, weights, [x]).values(), (y, h, c), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_recurrent_layers_agree_with_torch(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = Recurrent().eval()
    path = save(module, drawn(((6, 8),), 4), tmp_path / "recurrent.pt2")
    template, weights = imported(path)

    inputs = drawn(((6, 8),), 3)
    with torch.no_grad():
        expected = module(*inputs)
    results = run(template, weights, inputs)
    for name, tensor in expected.items():
        torch.testing.assert_close(results[name], tensor, rtol=1e-4, atol=1e-5)
    assert (
        sum(op.kind == "braid.recurrent" for op in template.operators) == 3
    )  # one a layer of LSTM and GRU


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
