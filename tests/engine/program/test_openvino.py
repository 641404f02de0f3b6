"""Whole models in OpenVINO, from the file that the import kept; ONNX Runtime is the oracle."""

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
from onnx import TensorProto

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
from braid.engine.runtime.arrays import Array
from braid.engine.runtime.stopping import StopSignal, stop_signal
from tests.models.small import doubling, embedding, in_text, small_cnn, written

pytest.importorskip("openvino", reason="braid-serve[openvino] is not installed")


def opened(path: Path, threads: int = 2, **options: Any) -> OpenVinoModel:
    precision = options.pop("precision", FP32)
    return OpenVinoModel(path, EnginePlace(threads, **options), precision)


def images(batch: int, seed: int = 0, size: int = 16) -> Array:
    return np.random.default_rng(seed).standard_normal((batch, 3, size, size), np.float32)


def expected(path: Path, **feeds: Array) -> dict[str, Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    results = session.run(None, feeds)
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
        model.run({"x": np.zeros((1, 4, 16, 16), np.float32)})


def test_repeats_are_equal_bit_by_bit(cnn: Path) -> None:
    model, x = opened(cnn), images(2)
    first = model.run({"x": x})["y"]

    assert all(np.array_equal(first, model.run({"x": x})["y"]) for _ in range(20))
    assert np.array_equal(first, opened(cnn).run({"x": x})["y"])


def test_rows_do_not_change_their_neighbours(cnn: Path) -> None:
    model, x = opened(cnn), images(4)
    alone = model.run({"x": x})["y"][1]

    x[[0, 2, 3]] = 1e30

    assert np.array_equal(model.run({"x": x})["y"][1], alone)


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

    assert narrow.dtype == np.float32
    assert 1e-4 < abs(narrow - exact).max() / abs(exact).max() < 5e-2


def test_indices_run_only_where_onnx_defines_them(tmp_path: Path) -> None:
    path = embedding(tmp_path / MODEL_FILE)
    model = opened(path)

    ids = np.array([[0, 9, -10, -1]])
    np.testing.assert_array_equal(model.run({"ids": ids})["y"], expected(path, ids=ids)["y"])
    for bad in (10, -11, (1 << 32) + 5):
        with pytest.raises(PreconditionFailed, match="from -10 to 9"):
            model.run({"ids": np.array([[0, 0, bad, 0]])})


def test_floats_may_be_summed_where_they_are_scattered(tmp_path: Path) -> None:
    text = """(float[batch, 5] x) => (float[batch, 5] y)
    { y = ScatterND<reduction="add">(x, c, x) }"""
    path = written(tmp_path / MODEL_FILE, text, c=[[1], [1]])
    x = np.random.default_rng(0).standard_normal((2, 5), np.float32)

    (found,), (wanted,) = opened(path).run({"x": x}).values(), expected(path, x=x).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


#   ids ──> ArgMax ──> Concat(rows | places) ──> GatherND(ids) ──> y
@pytest.mark.parametrize("are_columns", [True, False])
def test_places_of_the_largest_are_indices(tmp_path: Path, *, are_columns: bool) -> None:
    text = f"""(int64[2, 5] ids) => (float[2] y) {{
      places = ArgMax<axis=1, keepdims=0>(ids)  more = Unsqueeze(places, axis)
      tuples = Concat<axis={int(are_columns)}>(rows, more)  picked = GatherND(ids, tuples)
      y = Cast<to=1>(picked) }}"""
    rows = [[0], [1]] if are_columns else [[1, 1]]
    path = written(tmp_path / MODEL_FILE, text, rows=rows, axis=[int(are_columns)])

    ids = np.array([[3, 1, 9, 9, 2], [7, 0, 0, 7, 7]])

    if are_columns:
        np.testing.assert_array_equal(opened(path).run({"ids": ids})["y"], [9.0, 7.0])
    else:  # [1, 1] and the two places, the first of which is no row
        with pytest.raises(PreconditionFailed, match="GatherND on other integers, as one may be 4"):
            opened(path).run({"ids": ids})


@pytest.mark.parametrize("column", [4, 5, -6])
def test_constant_indices_are_those_of_each_axis(tmp_path: Path, column: int) -> None:
    text = "(float[batch, 5] x) => (float[2] y) { y = GatherND(x, c) }"
    path = written(tmp_path / MODEL_FILE, text, c=[[1, 0], [0, column]])
    x = np.random.default_rng(0).standard_normal((2, 5), np.float32)

    if column == 4:
        np.testing.assert_array_equal(opened(path).run({"x": x})["y"], expected(path, x=x)["y"])
    else:
        with pytest.raises(PreconditionFailed):
            opened(path).run({"x": x})


@pytest.mark.parametrize("element", [TensorProto.INT64, TensorProto.DOUBLE])
def test_what_it_would_compute_in_other_types_is_refused(tmp_path: Path, element: int) -> None:
    model = opened(doubling(tmp_path / MODEL_FILE, element))
    dtype = np.int64 if element == TensorProto.INT64 else np.float64

    with pytest.raises(PreconditionFailed, match="OpenVINO would compute"):
        model.run({"x": np.zeros((1, 3), dtype)})


def test_fp16_is_computed_in_fp32_and_given_as_fp16(tmp_path: Path) -> None:
    path = doubling(tmp_path / MODEL_FILE, TensorProto.FLOAT16)
    x = np.array([[0.1, -3.0, 20000.0]], np.float16)

    (found,) = opened(path).run({"x": x}).values()

    np.testing.assert_array_equal(found, expected(path, x=x)["y"])


def arithmetic(
    path: Path, nodes: str, constants: dict[str, Any], element: int = TensorProto.INT64
) -> Path:
    """Floats y of the integers z that the nodes make of x [3, 5]."""
    text = f"({in_text(element)}[3, 5] x) => (float[] y) {{ {nodes}  y = Cast<to=1>(z) }}"
    return written(path, text, **constants)


FIVE = {"c": np.array([2, -3, 1, 1 << 20, 5])}
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (f"z = {kind}(x, c)", FIVE) for kind in ("Add", "Sub", "Mul", "Max", "Min")},
    **{
        f"CumSum {exclusive}{reverse}": (
            f"z = CumSum<exclusive={exclusive}, reverse={reverse}>(x, c)", {"c": np.array(1)}
        )
        for exclusive in (0, 1) for reverse in (0, 1)
    },
    "ReduceMax": ("z = ReduceMax<axes=[1]>(x)", {}),
    "ArgMax": ("z = ArgMax<axis=-1>(x)", {}),
    "ArgMin": ("z = ArgMin<axis=0>(x)", {}),
    "Pad": ("z = Pad(x, c)", {"c": np.array([0, 1, 0, 2])}),
    "Clip": ("z = Clip(x, c, d)", {"c": np.array(-100), "d": np.array((1 << 24) - 1)}),
    "Equal": ("z = Equal(x, c)", {"c": np.array((1 << 24) - 1)}),
    "Less": ("z = Less(x, c)", {"c": np.array((1 << 24) - 1)}),
    "Not": ("b = Cast<to=9>(x)  z = Not(b)", {}),
    "GatherElements": (
        "z = GatherElements<axis=1>(t, x)", {"t": np.arange(18).reshape(3, 6)}
    ),
}  # fmt: skip
NOT_LISTED: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (f"z = {kind}(x)", {}) for kind in ("Abs", "Neg", "Sign")},
    **{
        f"{kind} {divisor}": (f"z = {kind}(x, c)", {"c": divisor})
        for kind in ("Div", "Mod", "Mod<fmod=1>")
        for divisor in (3, -7)
    },
    "ReduceSum": ("z = ReduceSum(x, c)", {"c": [1]}),
    "OneHot": ("z = OneHot(x, c, d)", {"c": 4, "d": [0, 7]}),
    "TopK": ("v, z = TopK(x, c)", {"c": [2]}),
    "Cast to 8 bits": ("z = Cast<to=3>(x)", {}),
    "Cast of floats": ("f = Cast<to=1>(x)  z = Cast<to=7>(f)", {}),
    "ScatterND": (
        'z = ScatterND<reduction="add">(x, c, d)',
        {"c": [[0], [0]], "d": np.full((2, 5), 1 << 24)},
    ),
}


@pytest.mark.parametrize(
    ("name", "element"),
    [(name, element) for name in OPERATORS for element in (TensorProto.INT64, TensorProto.INT32)],
)
def test_integers_are_those_of_onnxruntime_up_to_the_bounds(
    name: str, element: int, tmp_path: Path
) -> None:
    nodes, constants = OPERATORS[name]
    dtype = np.int64 if element == TensorProto.INT64 else np.int32
    kept = {"CumSum", "Pad"}  # whose other operands are INT64 always
    if element == TensorProto.INT32 and name.partition(" ")[0] not in kept:
        constants = {key: array.astype(np.int32) for key, array in constants.items()}
    path = arithmetic(tmp_path / MODEL_FILE, nodes, constants, element)
    model = opened(path)
    model.run({"x": np.zeros((3, 5), dtype)})
    ((low, high),) = next(iter(model._compiled.values())).bounds.of.values()
    random = np.random.default_rng(0)

    few = random.integers(-3, 4, (20, 3, 5)).clip(low, high)
    many = random.integers(low, high + 1, (20, 3, 5))
    ends = random.choice([low, high], (20, 3, 5))
    for x in np.concatenate([few, many, ends]).astype(dtype):
        (found,) = model.run({"x": x}).values()
        np.testing.assert_array_equal(found, expected(path, x=x)["y"])


@pytest.mark.parametrize(
    ("nodes", "constants", "why"),
    [
        ("z = Add(x, c)", {"c": 1 << 40}, str(1 << 40)),
        ("z = Equal(x, c)", {"c": (1 << 24) + 1}, "16777217"),
        ("z = Mul(x, c)", {"c": (1 << 24) + 1}, "16777217"),
        ("a = Add(x, c)  z = Add(a, c)", {"c": (1 << 24) - 1}, "33554431"),
        *((nodes, constants, "OpenVINO would compute") for nodes, constants in NOT_LISTED.values()),
    ],
)  # fmt: skip
def test_integers_that_it_would_not_tell_apart_are_refused(
    nodes: str, constants: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = arithmetic(tmp_path / MODEL_FILE, nodes, constants)

    with pytest.raises(PreconditionFailed, match=why):
        opened(path).run({"x": np.zeros((3, 5), np.int64)})


#   mask ──> CumSum ──> Mul(mask) ──> Add(1) ──> Gather(table of 514 rows) ──> y
def test_positions_counted_from_a_mask_are_followed_and_checked(tmp_path: Path) -> None:
    text = """(int64[batch, 16] mask) => (float[batch, 16, 3] y) {
      counted = CumSum(mask, one)  masked = Mul(counted, mask)  places = Add(masked, one)
      y = Gather(table, places) }"""
    table = np.random.default_rng(0).random((514, 3), np.float32)
    path = written(tmp_path / MODEL_FILE, text, table=table, one=1)
    model = opened(path)

    mask = np.array([[1] * 11 + [0] * 5, [0, 1] * 8])
    np.testing.assert_array_equal(model.run({"mask": mask})["y"], expected(path, mask=mask)["y"])
    with pytest.raises(PreconditionFailed, match="in input 'mask'"):
        model.run({"mask": mask * (1 << 33)})


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    text = """(float[batch, 3] x) => (float[batch, 3] y)
    { q = QuantizeLinear(x, scale, zero)  y = DequantizeLinear(q, scale, zero) }"""
    path = written(tmp_path / MODEL_FILE, text, scale=np.float32(0.1), zero=np.uint8(3))

    with pytest.raises(PreconditionFailed, match="quantised"):
        opened(path).run({"x": np.zeros((1, 3), np.float32)})


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
    text = """(float[batch, 3, 4, 4] x) => (float[batch, 3, 3, 3] y)
    { y = MaxPool<kernel_shape=[2, 2]>(x) }"""
    path = written(tmp_path / MODEL_FILE, text)
    x = images(2, size=4)
    np.testing.assert_array_equal(opened(path).run({"x": x})["y"], expected(path, x=x)["y"])


def test_masks_of_integers_may_be_made_floats(tmp_path: Path) -> None:
    text = """(int64[batch, 4] mask) => (float[batch, 4] y)
    { floats = Cast<to=1>(mask)  y = Sub(one, floats) }"""
    path = written(tmp_path / MODEL_FILE, text, one=np.float32(1))
    model = opened(path)

    given = np.array([[0, 1, 5, -7]])
    np.testing.assert_array_equal(model.run({"mask": given})["y"], [[1.0, 0.0, -4.0, 8.0]])
    with pytest.raises(PreconditionFailed, match="input 'mask'"):
        model.run({"mask": np.array([[0, 1, 5, 1 << 40]])})


def test_a_run_ends_when_it_is_to_end_also_before_it_begins(cnn: Path) -> None:
    model, x = opened(cnn), images(64, size=16)
    model.run({"x": x})

    def until_stopped(signal: StopSignal) -> None:
        stop_signal.set(signal)
        while True:
            model.run({"x": x})

    for delay in (0.0, 0.03):
        assert stopped(until_stopped, delay) == "too late"
    assert np.isfinite(model.run({"x": x})["y"]).all()


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
import sys
import numpy as np
from pathlib import Path
from braid.engine.program import openvino_library as library
from braid.engine.program.engines import EnginePlace
from braid.engine.program.openvino_model import OpenVinoModel
assert "openvino" not in sys.modules
model = OpenVinoModel(Path({str(cnn)!r}), EnginePlace(1))
model.run({{"x": np.zeros((1, 3, 16, 16), np.float32)}})
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
    text = """(float[batch, 3, 16, 16] x) => (float[batch, 3, 16, 16] y) {
      t = Transpose<perm=[2, 1, 0]>(c)  largest = ReduceMax<keepdims=0>(t)
      a = MatMul(x, w)  b = MatMul(a, u)  y = Add(b, largest) }"""
    return written(path, text, **weights)


@pytest.mark.ci
@pytest.mark.parametrize("model", [small_cnn, folded])
def test_its_threads_compute_and_keep_off_the_core_of_the_thread_that_calls_it(
    model: Callable[[Path], Path], tmp_path: Path
) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("one core")
    code = f"""
import os, threading
import numpy as np
from pathlib import Path
from time import monotonic
from braid.engine.program.engines import EnginePlace
from braid.engine.program.openvino_model import OpenVinoModel

def computed(thread):
    return int(Path(f"/proc/self/task/{{thread}}/stat").read_text().rpartition(")")[2].split()[11])

os.sched_setaffinity(0, {{{cpus[0]}}})
before = set(os.listdir("/proc/self/task"))
model = OpenVinoModel(Path({str(model(tmp_path / MODEL_FILE))!r}), EnginePlace(2, {cpus}))
model.run({{"x": np.ones((8, 3, 16, 16), np.float32)}})
inputs = {{"x": np.ones((512, 3, 16, 16), np.float32)}}
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
