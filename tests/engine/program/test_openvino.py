"""Whole models in OpenVINO, from the file that the import kept; ONNX Runtime is the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from braid.core.errors import PreconditionFailed, RunStopped
from braid.core.precision import BF16, FP32
from braid.core.runtimes import ONNXRUNTIME
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.device_key import offered_precisions
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.importer.host.report import MODEL_FILE
from braid.engine.program import openvino_library as library
from braid.engine.program.engines import EnginePlace
from braid.engine.program.openvino_model import OpenVinoModel
from braid.engine.runtime.stopping import StopSignal, stop_signal
from tests.models.graphs import graph, save, tensors
from tests.models.small import doubling, embedding, small_cnn

pytest.importorskip("openvino", reason="braid-serve[openvino] is not installed")


def opened(path: Path, threads: int = 2, **options: Any) -> OpenVinoModel:
    precision = options.pop("precision", FP32)
    return OpenVinoModel(path, EnginePlace(threads, **options), precision)


def images(batch: int, seed: int = 0, size: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, size, size, generator=generator)


def expected(path: Path, **feeds: torch.Tensor) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})
    return dict(zip([out.name for out in session.get_outputs()], results, strict=True))


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    return small_cnn(tmp_path / MODEL_FILE)


def test_it_computes_any_batch_as_onnxruntime_does(cnn: Path) -> None:
    model = opened(cnn)

    for batch in (1, 3, 1):
        x = images(batch)
        (found,), (wanted,) = model.run({"x": x}).values(), expected(cnn, x=x).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(PreconditionFailed, match="cannot run"):
        model.run({"x": torch.zeros(1, 4, 16, 16)})


def test_repeats_are_equal_bit_by_bit(cnn: Path) -> None:
    model, x = opened(cnn), images(2)
    first = model.run({"x": x})["y"]

    assert all(torch.equal(first, model.run({"x": x})["y"]) for _ in range(20))
    assert torch.equal(first, opened(cnn).run({"x": x})["y"])


def test_rows_do_not_change_their_neighbours(cnn: Path) -> None:
    model, x = opened(cnn), images(4)
    alone = model.run({"x": x})["y"][1]

    x[[0, 2, 3]] = 1e30

    assert torch.equal(model.run({"x": x})["y"][1], alone)


def test_outputs_are_written_in_place_also_when_the_place_is_used_again(cnn: Path) -> None:
    model, x = opened(cnn), images(2)
    place = {name: torch.empty_like(each) for name, each in model.run({"x": x}).items()}

    for seed in range(3):
        x.copy_(images(2, seed))
        model.run_into({"x": x}, place)

        for name, wanted in model.run({"x": x}).items():
            assert torch.equal(place[name], wanted)
    with pytest.raises(PreconditionFailed, match="cannot run"):
        model.run_into({"x": x}, {name: each[:1] for name, each in place.items()})


def test_several_threads_run_it_at_once(cnn: Path) -> None:
    model, wrong = opened(cnn, 1, callers=4), []

    def calls(seed: int) -> None:
        x = images(1, seed)
        (wanted,) = expected(cnn, x=x).values()
        found = [model.run({"x": x})["y"] for _ in range(10)]
        if not all(np.allclose(each, wanted, rtol=1e-4, atol=1e-4) for each in found):
            wrong.append(seed)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert not wrong


@pytest.mark.skipif(BF16 not in offered_precisions(), reason="a CPU without instructions for BF16")
def test_in_bf16_it_rounds_and_stays_close(cnn: Path) -> None:
    rows = {"x": images(2)}

    exact, narrow = opened(cnn).run(rows)["y"], opened(cnn, precision=BF16).run(rows)["y"]

    assert narrow.dtype == torch.float32
    assert 1e-4 < float((narrow - exact).abs().max() / exact.abs().max()) < 5e-2


def test_a_broken_file_is_not_opened(cnn: Path) -> None:
    cnn.write_bytes(b"not a model")
    with pytest.raises(PreconditionFailed, match="refuses"):
        opened(cnn)


def test_indices_run_only_where_onnx_defines_them(tmp_path: Path) -> None:
    path = embedding(tmp_path / MODEL_FILE)
    model = opened(path)

    ids = torch.tensor([[0, 9, -10, -1]])
    np.testing.assert_array_equal(model.run({"ids": ids})["y"], expected(path, ids=ids)["y"])
    for bad in (10, -11, (1 << 32) + 5):
        with pytest.raises(PreconditionFailed, match="from -10 to 9"):
            model.run({"ids": torch.tensor([[0, 0, bad, 0]])})


def test_floats_may_be_summed_where_they_are_scattered(tmp_path: Path) -> None:
    nodes = [helper.make_node("ScatterND", ["x", "c", "x"], ["y"], reduction="add")]
    shapes = tensors(x=["batch", 5]), tensors(y=["batch", 5])
    path = save(graph(nodes, *shapes, {"c": np.array([[1], [1]])}, "sums"), tmp_path / MODEL_FILE)
    x = torch.randn(2, 5)

    (found,), (wanted,) = opened(path).run({"x": x}).values(), expected(path, x=x).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


#   ids ──> ArgMax ──> Concat(rows | places) ──> GatherND(ids) ──> y
@pytest.mark.parametrize("are_columns", [True, False])
def test_places_of_the_largest_are_indices(tmp_path: Path, *, are_columns: bool) -> None:
    make = helper.make_node
    nodes = [
        make("ArgMax", ["ids"], ["places"], axis=1, keepdims=0),
        make("Unsqueeze", ["places", "axis"], ["more"]),
        make("Concat", ["rows", "more"], ["tuples"], axis=int(are_columns)),
        make("GatherND", ["ids", "tuples"], ["picked"]),
        make("Cast", ["picked"], ["y"], to=TensorProto.FLOAT),
    ]
    rows = np.array([[0], [1]]) if are_columns else np.array([[1, 1]])
    constants = {"rows": rows, "axis": np.array([int(are_columns)])}
    shapes = tensors(TensorProto.INT64, ids=[2, 5]), tensors(y=[2])
    path = save(graph(nodes, *shapes, constants, "places"), tmp_path / MODEL_FILE)
    ids = torch.tensor([[3, 1, 9, 9, 2], [7, 0, 0, 7, 7]])

    if are_columns:
        np.testing.assert_array_equal(opened(path).run({"ids": ids})["y"], [9.0, 7.0])
    else:  # [1, 1] and the two places, the first of which is no row
        with pytest.raises(PreconditionFailed, match="GatherND on other integers, as one may be 4"):
            opened(path).run({"ids": ids})


@pytest.mark.parametrize("column", [4, 5, -6])
def test_constant_indices_are_those_of_each_axis(tmp_path: Path, column: int) -> None:
    nodes = [helper.make_node("GatherND", ["x", "c"], ["y"])]
    shapes = tensors(x=["batch", 5]), tensors(y=[2])
    indices = {"c": np.array([[1, 0], [0, column]])}
    path = save(graph(nodes, *shapes, indices, "tuples"), tmp_path / MODEL_FILE)
    x = torch.randn(2, 5)

    if column == 4:
        np.testing.assert_array_equal(opened(path).run({"x": x})["y"], expected(path, x=x)["y"])
    else:
        with pytest.raises(PreconditionFailed):
            opened(path).run({"x": x})


@pytest.mark.parametrize("element", [TensorProto.INT64, TensorProto.DOUBLE])
def test_what_it_would_compute_in_other_types_is_refused(tmp_path: Path, element: int) -> None:
    model = opened(doubling(tmp_path / MODEL_FILE, element))
    dtype: dict[int, torch.dtype] = {
        TensorProto.INT64: torch.int64,
        TensorProto.DOUBLE: torch.float64,
    }

    with pytest.raises(PreconditionFailed, match="OpenVINO would compute"):
        model.run({"x": torch.zeros(1, 3, dtype=dtype[element])})


def test_fp16_is_computed_in_fp32_and_given_as_fp16(tmp_path: Path) -> None:
    path = doubling(tmp_path / MODEL_FILE, TensorProto.FLOAT16)
    x = torch.tensor([[0.1, -3.0, 20000.0]]).half()

    (found,) = opened(path).run({"x": x}).values()

    np.testing.assert_array_equal(found, expected(path, x=x)["y"])


def test_bf16_is_computed_in_fp32_and_given_as_bf16(tmp_path: Path) -> None:
    path = doubling(tmp_path / MODEL_FILE, TensorProto.BFLOAT16)
    x = torch.tensor([[0.1, -3.0, 20000.0], [1e30, float("inf"), -0.0]]).bfloat16()
    model, place = opened(path), torch.full_like(x, 7.0)

    (output,) = model.run({"x": x})
    for rows in (x, -x):
        model.run_into({"x": rows.clone()}, {output: place})
        assert torch.equal(place, 2 * rows)  # exact: only the exponent changes


def arithmetic(
    path: Path, nodes: list[Any], constants: dict[str, Any], shape: list[int], element: int
) -> Path:
    """Floats y of the integers z that the nodes make of x."""
    nodes = [*nodes, helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return save(graph(nodes, tensors(element, x=shape), outputs, constants, "numbers"), path)


def node(kind: str, *inputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, ["x", *inputs], ["z"], **attributes)


FIVE = {"c": np.array([2, -3, 1, 1 << 20, 5])}
OPERATORS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{kind: ([node(kind, "c")], FIVE) for kind in ("Add", "Sub", "Mul", "Max", "Min")},
    **{
        f"CumSum {exclusive}{reverse}": (
            [node("CumSum", "c", exclusive=exclusive, reverse=reverse)], {"c": np.array(1)}
        )
        for exclusive in (0, 1) for reverse in (0, 1)
    },
    "ReduceMax": ([node("ReduceMax", axes=[1])], {}),
    "ArgMax": ([node("ArgMax", axis=-1)], {}),
    "ArgMin": ([node("ArgMin", axis=0)], {}),
    "Pad": ([node("Pad", "c")], {"c": np.array([0, 1, 0, 2])}),
    "Clip": ([node("Clip", "c", "d")], {"c": np.array(-100), "d": np.array((1 << 24) - 1)}),
    "Equal": ([node("Equal", "c")], {"c": np.array((1 << 24) - 1)}),
    "Less": ([node("Less", "c")], {"c": np.array((1 << 24) - 1)}),
    "Not": ([helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL),
             helper.make_node("Not", ["b"], ["z"])], {}),
    "GatherElements": ([helper.make_node("GatherElements", ["t", "x"], ["z"], axis=1)],
                       {"t": np.arange(18).reshape(3, 6)}),
}  # fmt: skip
NOT_LISTED: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{kind: ([node(kind)], {}) for kind in ("Abs", "Neg", "Sign")},
    **{
        f"{kind} {divisor}": ([node(kind, "c", **how)], {"c": np.array(divisor)})
        for kind, how in (("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1}))
        for divisor in (3, -7)
    },
    "ReduceSum": ([node("ReduceSum", "c")], {"c": np.array([1])}),
    "OneHot": ([node("OneHot", "c", "d")], {"c": np.array(4), "d": np.array([0, 7])}),
    "TopK": ([helper.make_node("TopK", ["x", "c"], ["v", "z"])], {"c": np.array([2])}),
    "Cast to 8 bits": ([node("Cast", to=TensorProto.INT8)], {}),
    "Cast of floats": ([helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
                        helper.make_node("Cast", ["f"], ["z"], to=TensorProto.INT64)], {}),
    "ScatterND": ([node("ScatterND", "c", "d", reduction="add")],
                  {"c": np.array([[0], [0]]), "d": np.full((2, 5), 1 << 24)}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "element"),
    [(name, element) for name in OPERATORS for element in (TensorProto.INT64, TensorProto.INT32)],
)
def test_integers_are_those_of_onnxruntime_up_to_the_bounds(
    name: str, element: int, tmp_path: Path
) -> None:
    nodes, constants = OPERATORS[name]
    dtype = torch.int64 if element == TensorProto.INT64 else torch.int32
    kept = {"CumSum", "Pad"}  # whose other operands are INT64 always
    if element == TensorProto.INT32 and name.partition(" ")[0] not in kept:
        constants = {key: array.astype(np.int32) for key, array in constants.items()}
    path = arithmetic(tmp_path / MODEL_FILE, nodes, constants, [3, 5], element)
    model = opened(path)
    model.run({"x": torch.zeros(3, 5, dtype=dtype)})
    ((low, high),) = next(iter(model._compiled.values())).bounds.of.values()
    random = torch.Generator().manual_seed(0)

    few = torch.randint(-3, 4, (20, 3, 5), generator=random).clamp(int(low), int(high))
    many = torch.randint(int(low), int(high) + 1, (20, 3, 5), generator=random)
    ends = torch.tensor([low, high], dtype=torch.int64)[
        torch.randint(0, 2, (20, 3, 5), generator=random)
    ]
    for x in torch.cat([few, many, ends]).to(dtype):
        (found,) = model.run({"x": x}).values()
        np.testing.assert_array_equal(found, expected(path, x=x)["y"])


@pytest.mark.parametrize(
    ("nodes", "constants", "why"),
    [
        ([node("Add", "c")], {"c": np.array(1 << 40)}, str(1 << 40)),
        ([node("Equal", "c")], {"c": np.array((1 << 24) + 1)}, "16777217"),
        ([node("Mul", "c")], {"c": np.array((1 << 24) + 1)}, "16777217"),
        ([helper.make_node("Add", ["x", "c"], ["a"]), helper.make_node("Add", ["a", "c"], ["z"])],
         {"c": np.array((1 << 24) - 1)}, "33554431"),
        *((nodes, constants, "OpenVINO would compute") for nodes, constants in NOT_LISTED.values()),
    ],
)  # fmt: skip
def test_integers_that_it_would_not_tell_apart_are_refused(
    nodes: list[Any], constants: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = arithmetic(tmp_path / MODEL_FILE, nodes, constants, [3, 5], TensorProto.INT64)

    with pytest.raises(PreconditionFailed, match=why):
        opened(path).run({"x": torch.zeros(3, 5, dtype=torch.int64)})


#   mask ──> CumSum ──> Mul(mask) ──> Add(1) ──> Gather(table of 514 rows) ──> y
def test_positions_counted_from_a_mask_are_followed_and_checked(tmp_path: Path) -> None:
    make = helper.make_node
    nodes = [
        make("CumSum", ["mask", "axis"], ["counted"]),
        make("Mul", ["counted", "mask"], ["masked"]),
        make("Add", ["masked", "one"], ["places"]),
        make("Gather", ["table", "places"], ["y"]),
    ]
    constants = {"axis": np.array(1), "one": np.array(1)}
    table = np.random.default_rng(0).random((514, 3), np.float32)
    shapes = tensors(TensorProto.INT64, mask=["batch", 16]), tensors(y=["batch", 16, 3])
    drawn = graph(nodes, *shapes, {**constants, "table": table}, "positions")
    path = save(drawn, tmp_path / MODEL_FILE)
    model = opened(path)

    mask = torch.tensor([[1] * 11 + [0] * 5, [0, 1] * 8])
    np.testing.assert_array_equal(model.run({"mask": mask})["y"], expected(path, mask=mask)["y"])
    with pytest.raises(PreconditionFailed, match="in input 'mask'"):
        model.run({"mask": mask * (1 << 33)})


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.uint8)}
    shapes = tensors(x=["batch", 3]), tensors(y=["batch", 3])
    path = save(graph(nodes, *shapes, constants, "quantised"), tmp_path / MODEL_FILE)

    with pytest.raises(PreconditionFailed, match="quantised"):
        opened(path).run({"x": torch.zeros(1, 3)})


def test_without_the_package_it_takes_no_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    library.is_installed.cache_clear()
    executor = CpuExecutor(threads=1)
    try:
        with caplog.at_level("DEBUG", "braid.worker"):
            found = [tuple(CpuBackend(executor).runtimes) for _ in range(2)]
    finally:
        executor.close()
        library.is_installed.cache_clear()

    assert found == [(ONNXRUNTIME,)] * 2
    assert [record.message for record in caplog.records] == [
        "OpenVINO takes no part: pip install 'braid-serve[openvino]'"
    ]


def test_indices_that_nobody_reads_do_not_matter(tmp_path: Path) -> None:
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])]
    shapes = tensors(x=["batch", 3, 4, 4]), tensors(y=["batch", 3, 3, 3])
    path = save(graph(nodes, *shapes, {}, "pool"), tmp_path / MODEL_FILE)

    x = images(2, size=4)
    np.testing.assert_array_equal(opened(path).run({"x": x})["y"], expected(path, x=x)["y"])


def test_masks_of_integers_may_be_made_floats(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["mask"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "floats"], ["y"]),
    ]
    mask = tensors(TensorProto.INT64, mask=["batch", 4])
    constants = {"one": np.array(1, np.float32)}
    path = save(
        graph(nodes, mask, tensors(y=["batch", 4]), constants, "mask"), tmp_path / MODEL_FILE
    )
    model = opened(path)

    given = torch.tensor([[0, 1, 5, -7]])
    np.testing.assert_array_equal(model.run({"mask": given})["y"], [[1.0, 0.0, -4.0, 8.0]])
    with pytest.raises(PreconditionFailed, match="input 'mask'"):
        model.run({"mask": torch.tensor([[0, 1, 5, 1 << 40]])})


def test_a_run_ends_when_it_is_to_end_also_before_it_begins(cnn: Path) -> None:
    model, x = opened(cnn), images(64, size=16)
    model.run({"x": x})

    def until_stopped(signal: StopSignal) -> None:
        stop_signal.set(signal)
        while True:
            model.run({"x": x})

    for delay in (0.0, 0.03):
        assert stopped(until_stopped, delay) == "too late"
    assert model.run({"x": x})["y"].isfinite().all()


def stopped(work: Callable[[StopSignal], None], after_s: float) -> str:
    """Reason with which ``work``, in a thread of its own, ended after it was told to."""
    signal, reasons = StopSignal(), []

    def run() -> None:
        try:
            work(signal)
        except RunStopped as stop:
            reasons.append(str(stop))

    thread = threading.Thread(target=run)
    if not after_s:
        signal.stop("too late")
    thread.start()
    time.sleep(after_s)
    signal.stop("too late")
    thread.join(120)
    (reason,) = reasons
    return reason


@pytest.mark.ci
def test_it_writes_no_files_and_loads_nothing_that_reports(cnn: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    code = f"""
import sys, torch
from pathlib import Path
from braid.engine.program import openvino_library as library
from braid.engine.program.engines import EnginePlace
from braid.engine.program.openvino_model import OpenVinoModel
assert "openvino" not in sys.modules
model = OpenVinoModel(Path({str(cnn)!r}), EnginePlace(1))
model.run({{"x": torch.zeros(1, 3, 16, 16)}})
print(*(name for name in sys.modules if "telemetry" in name or name.startswith("openvino.tools")))
"""
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, check=True)

    assert done.stdout.decode().strip() in ("", "openvino.tools.ovc"), "refused, not loaded"
    assert not list(home.rglob("*"))


def folded(path: Path) -> Path:
    """x [batch, 3, 16, 16] -> two products, and the largest number of a transposed constant."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.normal(size=(16, 256)).astype(np.float32),
        "u": random.normal(size=(256, 16)).astype(np.float32),
        "c": random.normal(size=(64, 64, 48)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Transpose", ["c"], ["t"], perm=[2, 1, 0]),
        helper.make_node("ReduceMax", ["t"], ["largest"], keepdims=0),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "u"], ["b"]),
        helper.make_node("Add", ["b", "largest"], ["y"]),
    ]
    shapes = tensors(x=["batch", 3, 16, 16]), tensors(y=["batch", 3, 16, 16])
    return save(graph(nodes, *shapes, weights, "folded"), path)


@pytest.mark.ci
@pytest.mark.parametrize("model", [small_cnn, folded])
def test_its_threads_compute_and_keep_off_the_core_of_the_thread_that_calls_it(
    model: Callable[[Path], Path], tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("one core")
    code = f"""
import os, threading, torch
from pathlib import Path
from time import monotonic
from braid.engine.program.engines import EnginePlace
from braid.engine.program.openvino_model import OpenVinoModel

def computed(thread):
    return int(Path(f"/proc/self/task/{{thread}}/stat").read_text().rpartition(")")[2].split()[11])

os.sched_setaffinity(0, {{{cpus[0]}}})
before = set(os.listdir("/proc/self/task"))
model = OpenVinoModel(Path({str(model(tmp_path / MODEL_FILE))!r}), EnginePlace(2, {cpus}))
model.run({{"x": torch.randn(8, 3, 16, 16)}})
inputs = {{"x": torch.randn(512, 3, 16, 16)}}
model.run(inputs)
made = set(os.listdir("/proc/self/task")) - before
masks, until = set(), monotonic() + 60
while not (masks and any(map(computed, made))) and monotonic() < until:
    runs = threading.Thread(target=lambda: [model.run(inputs) for _ in range(30)])
    runs.start()
    while runs.is_alive():
        masks |= {{tuple(os.sched_getaffinity(int(thread))) for thread in made}}
print(sorted(os.sched_getaffinity(0)), sorted(masks), any(map(computed, made)))
print("HWLOC_THISSYSTEM" in os.environ)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout.decode().split("\n")[:2] == [f"[{cpus[0]}] [({cpus[1]},)] True", "False"]
