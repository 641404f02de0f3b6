"""Kernels on BF16 against float64, on the numbers that BF16 leaves, and networks against FP32.

oneDNN emulates BF16 with AVX-512, so this runs on CPUs that do not offer it, too.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.networks.export import export_onnx
from benchmarks.networks.registry import NETWORKS
from braid.core.graph import Literal
from braid.core.precision import BF16
from braid.engine.cpu.device_key import offered_precisions
from braid.engine.onednn.library import find_onednn
from braid.engine.ops.kinds import call
from braid.engine.runtime import instructions
from tests.engine.cpu.executors import on_tensors
from tests.engine.cpu.test_kernels import (
    EPILOGUES,
    Attributes,
    all_kernels,
    convolution_attributes,
    unit_graph,
)
from tests.engine.cpu.test_networks import check_plans
from tests.models.small import small_cnn

pytestmark = pytest.mark.skipif(
    find_onednn() is None or torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="needs oneDNN, and AVX-512 for BF16",
)

STEP = 2.0**-8  # between a number and the next one in BF16, at most, as a part of it
Inputs = Mapping[str, Tensor | None]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def onednn(
    kind: str, inputs: Inputs, constants: list[str], attributes: Attributes, threads: int = 1
) -> Tensor:
    """What the unit's kernel on primitives makes, images in channels_last."""
    graph, weights = unit_graph(kind, inputs, constants, attributes)
    assert graph.spec("y").dtype == "BF16"
    kernel = all_kernels(graph, weights)["onednn"]
    torch.set_num_threads(threads)
    result = on_tensors(kernel, threads)(*inputs.values())
    return result if isinstance(result, Tensor) else result[0]


def check(
    kind: str, inputs: Inputs, constants: list[str], attributes: Attributes, threads: int = 1
) -> None:
    """The kernel's numbers are the unit's in float64, but for one step of BF16."""
    got = onednn(kind, inputs, constants, attributes, threads)
    graph, _ = unit_graph(kind, inputs, constants, attributes)
    (unit,) = graph.operators
    wide = [None if tensor is None else tensor.double() for tensor in inputs.values()]
    (wanted,) = call(unit, wide)
    assert (got.dtype, got.shape) == (torch.bfloat16, wanted.shape)
    sums = 1e-5 * wanted.abs().max().item()  # in FP32
    torch.testing.assert_close(got.double(), wanted, rtol=STEP, atol=sums + 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_round_once(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 1, 2, 4]), label="groups")
    inner, outer = (groups * data.draw(st.integers(1, 24), label=n) for n in ("in", "out"))
    taps, stride = (data.draw(st.sampled_from([1, 2, 3]), label=n) for n in ("taps", "stride"))
    size, batch = data.draw(st.integers(3, 15)), data.draw(st.integers(1, 3))
    epilogue = data.draw(st.sampled_from(EPILOGUES), label="epilogue")
    attributes = convolution_attributes(
        stride=[stride, stride], padding=[taps // 2, taps // 2], groups=groups
    )
    if epilogue:
        attributes["epilogue"] = epilogue
    bias = drawn(outer) if data.draw(st.booleans(), label="bias") else None
    x, w = drawn(batch, inner, size, size), drawn(outer, inner // groups, taps, taps)
    inputs = {"x": x, "w": w, "b": bias}
    check("aten.convolution", inputs, ["w", "b"], attributes, data.draw(st.integers(1, 2)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 80), st.booleans(), st.booleans())
def test_linear_layers_round_once(m: int, k: int, n: int, residual: bool, biased: bool) -> None:
    inputs = {"x": drawn(m, k), "w": drawn(n, k), "b": drawn(n) if biased else None}

    if residual:
        check("braid.linear_add", {**inputs, "r": drawn(m, n)}, ["w", "b"], {})
    else:
        check("aten.linear", inputs, ["w", "b"], {"epilogue": [["aten.gelu"]]})


@pytest.mark.parametrize("epilogue", [[], [["aten.relu"]]], ids=str)
def test_sums_are_taken_before_the_number_is_rounded(epilogue: list[Literal]) -> None:
    inputs = {"x": drawn(2, 4, 6, 6), "w": drawn(16, 4, 3, 3), "b": drawn(16)}
    inputs["r"] = drawn(2, 16, 6, 6)

    check("braid.convolution_add", inputs, ["w", "b"], convolution_attributes(epilogue=epilogue))
    check("aten.add", {"a": drawn(2, 3, 4, 5), "b": drawn(2, 3, 4, 5)}, [], {"epilogue": epilogue})


@pytest.mark.parametrize("kind", ["braid.max_pool", "braid.avg_pool"])
@pytest.mark.parametrize("counted", [False, True])
def test_pooling(kind: str, counted: bool) -> None:
    attributes: dict[str, Literal] = {
        "kernel": [3, 3], "stride": [2, 2], "pads": [1, 1, 1, 1], "dilation": [1, 1],
        "ceil_mode": False,
    }  # fmt: skip
    if kind == "braid.avg_pool":
        attributes["count_padding"] = counted
    check(kind, {"x": drawn(2, 5, 11, 9)}, [], attributes)
    check("aten.mean", {"x": drawn(2, 5, 30, 30)}, [], {"dims": [2, 3], "keepdim": counted})


@pytest.mark.parametrize("kind", ["aten.relu", "aten.sigmoid", "aten.tanh", "aten.silu"])
def test_functions_of_one_value(kind: str) -> None:
    check(kind, {"x": drawn(3, 50)}, [], {})


def test_concatenations_and_slices_keep_every_number() -> None:
    parts = {name: drawn(2, count, 5, 4) for name, count in {"a": 3, "b": 4, "c": 1}.items()}
    joined = onednn("aten.cat", parts, [], {"dim": 1})
    cut: Attributes = {"starts": [1, 1], "ends": [2, 9], "axes": [0, -1], "steps": [1, 2]}
    x = drawn(2, 10, 9, 11)

    assert torch.equal(joined, torch.cat(list(parts.values()), 1))
    assert torch.equal(onednn("braid.slice", {"x": x}, [], cut), x[1:2, :, :, 1:9:2])


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (3, 5)])
def test_conversions_round_to_the_nearest_number_and_keep_what_is_none(
    shape: tuple[int, ...],
) -> None:
    x = torch.randn(shape)
    x.flatten()[:5] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.4e38, 1e-45])
    graph, _ = unit_graph("braid.cast", {"x": x}, [], {"dtype": "BF16"})
    back, _ = unit_graph("braid.cast", {"x": x.bfloat16()}, [], {"dtype": "FP32"})

    for narrowing, given_, wanted in (
        (graph, x, x.bfloat16()),
        (back, x.bfloat16(), x.bfloat16().float()),
    ):
        got = on_tensors(all_kernels(narrowing, {})["onednn"], 2)(given_)
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-40, equal_nan=True)


def test_numbers_too_large_become_infinite_and_others_do_not() -> None:
    x, w = torch.full((1, 8, 4, 4), 1e37).bfloat16(), torch.ones(2, 8, 1, 1).bfloat16()
    w[1] *= 10
    window = convolution_attributes(padding=[0, 0])
    got = onednn("aten.convolution", {"x": x, "w": w}, ["w"], window)

    assert got[:, 0].isfinite().all()
    assert (got[:, 1] == torch.inf).all()


def test_neighbours_of_a_batch_do_not_see_each_other() -> None:
    x, w = drawn(3, 8, 9, 9), drawn(16, 8, 3, 3)
    alone = onednn("aten.convolution", {"x": x, "w": w}, ["w"], convolution_attributes())
    rows, v = drawn(3, 32), drawn(8, 32)
    products = onednn("aten.linear", {"x": rows, "w": v}, ["w"], {})
    x[1], x[2], rows[1], rows[2] = torch.nan, torch.inf, torch.nan, -torch.inf
    beside = onednn("aten.convolution", {"x": x, "w": w}, ["w"], convolution_attributes())

    assert torch.equal(beside[0], alone[0])
    assert beside[1].isnan().all()
    assert not beside[2].isfinite().any()
    assert torch.equal(onednn("aten.linear", {"x": rows, "w": v}, ["w"], {})[0], products[0])


@pytest.mark.parametrize("batch", [1, 5])
def test_a_small_network_runs_outside_the_interpreter_under_every_plan(
    batch: int, tmp_path: Path
) -> None:
    path = small_cnn(tmp_path / "small.onnx")

    check_plans(path, {"x": torch.randn(batch, 3, 16, 16)}, BF16, native=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "deepfm"])
def test_networks_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    inputs = zip(network.input_names, network.example_inputs(1), strict=True)

    check_plans(export_onnx(name, tmp_path / "network.onnx"), dict(inputs), BF16)


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        ("fpu avx512f avx512_bf16", ("fp32", "bf16")),
        ("fpu amx_bf16", ("fp32", "bf16")),
        ("fpu avx512f avx512bw avx512_vnni", ("fp32", "int8")),
        ("fpu avx512f avx512_bf16 avx512_vnni", ("fp32", "bf16", "int8")),
        ("fpu avx2 avx_vnni", ("fp32", "int8")),
        ("fpu avx512f avx512bw", ("fp32",)),
    ],
)
def test_narrow_precisions_are_offered_where_the_cpu_has_them(
    flags: str, offered: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "cpuinfo"
    information.write_text(f"processor\t: 0\nmodel name\t: X\nflags\t\t: {flags}\n")
    monkeypatch.setattr(instructions, "CPU_INFORMATION", information)

    assert offered_precisions() == offered
