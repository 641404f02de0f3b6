"""Whole models in ONNX Runtime, and what holds for OpenVINO, too; of the import's file."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from braid.core.errors import InvalidArtefact, PreconditionFailed
from braid.core.graph import Operator, OpGraph
from braid.core.precision import FP32
from braid.core.runtimes import ONNXRUNTIME, OPENVINO, RUNTIMES
from braid.core.tensor import TensorType
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.device_key import installed_engines
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.device import open_whole
from braid.engine.importer.host.report import MODEL_FILE, file_digest
from braid.engine.program.engines import EnginePlace
from braid.engine.program.onnxruntime_session import CUDA_PROVIDER, OnnxSession, check_division
from braid.engine.program.openvino_model import OpenVinoModel
from braid.engine.runtime.yielding import NetClock, YieldToRequests, in_thread
from braid.engine.worker.models import ModelTable
from tests.models.small import small_cnn, written

EACH_ENGINE = pytest.mark.parametrize("engine", installed_engines())


@pytest.fixture
def artefact(tmp_path: Path) -> Path:
    return small_cnn(tmp_path / MODEL_FILE).parent


@pytest.fixture
def table(artefact: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelTable]:
    files = {MODEL_FILE: file_digest(artefact / MODEL_FILE)}
    report = SimpleNamespace(files=files, content={}, static_inputs=())
    loaded = SimpleNamespace(graph=SimpleNamespace(inputs={}), weights={}, report=report)
    monkeypatch.setattr("braid.engine.worker.models.load_artefact", lambda _: loaded)
    executor = CpuExecutor(threads=2)
    yield ModelTable(CpuBackend(executor))
    executor.close()


def test_it_runs_any_batch_and_spares_the_cores_of_others(artefact: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    session = OnnxSession(artefact / MODEL_FILE, EnginePlace(len(cores), cores))

    for batch in (1, 3):
        outputs = session.run({"x": np.zeros((batch, 3, 16, 16), np.float32)})
        assert {name: y.shape for name, y in outputs.items()} == {"y": (batch, 4, 16, 16)}
    with pytest.raises(PreconditionFailed, match="cannot run"):
        session.run({"x": np.zeros((1, 4, 16, 16), np.float32)})


def opened(engine: str, path: Path) -> OnnxSession | OpenVinoModel:
    place = EnginePlace(1)
    return OpenVinoModel(path, place, FP32) if engine == OPENVINO else OnnxSession(path, place)


@EACH_ENGINE
def test_outputs_are_written_in_place_also_when_the_place_is_used_again(
    engine: str, artefact: Path
) -> None:
    model = opened(engine, artefact / MODEL_FILE)
    x = np.zeros((2, 3, 16, 16), np.float32)
    place = {name: np.empty_like(each) for name, each in model.run({"x": x}).items()}

    for seed in range(3):
        x[...] = np.random.default_rng(seed).standard_normal(x.shape)
        model.run_into({"x": x}, place)

        for name, wanted in model.run({"x": x}).items():
            assert np.array_equal(place[name], wanted)
    with pytest.raises(PreconditionFailed, match="cannot run"):
        model.run_into({"x": x}, {name: each[:1] for name, each in place.items()})


def test_outputs_are_written_where_the_file_declares_other_extents(tmp_path: Path) -> None:
    """torch's exporter declares the extents of its example for some outputs."""
    declared = "(float[n, length] x) => (float[n, 16] y) { y = Add(x, x) }"
    path = written(tmp_path / MODEL_FILE, declared)
    session = OnnxSession(path, EnginePlace(1))

    for length in (16, 23, 24):
        x = np.arange(2.0 * length, dtype=np.float32).reshape(2, length)
        place = {"y": np.empty((2, length), np.float32)}
        session.run_into({"x": x}, place)
        assert np.array_equal(place["y"], 2 * x)
    with pytest.raises(PreconditionFailed, match="cannot run"):
        session.run_into({"x": x}, {"y": np.empty((1, 24), np.float32)})


#   x BF16 ──> Cast(FP32) ──> Add(x) ──> Cast(BF16) ──> y      ONNX Runtime adds no BF16 on a CPU
@EACH_ENGINE
def test_bf16_goes_in_and_out_also_in_place(engine: str, tmp_path: Path) -> None:
    text = """(bfloat16[batch, 3] x) => (bfloat16[batch, 3] y)
    { wide = Cast<to=1>(x)  sum = Add(wide, wide)  y = Cast<to=16>(sum) }"""
    session = opened(engine, written(tmp_path / MODEL_FILE, text))
    x = np.array([[0.1, -3.0, 20000.0], [1e30, float("inf"), -0.0]], bfloat16)
    place = np.full_like(x, 7.0)

    for given in (x, -x):
        assert np.array_equal(session.run({"x": given})["y"], given + given)
        session.run_into({"x": given}, {"y": place})
        assert np.array_equal(place, given + given)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_changed_or_missing_file_is_not_opened(artefact: Path, runtime: str) -> None:
    backend = CpuBackend(CpuExecutor(threads=1))
    with pytest.raises(InvalidArtefact, match="changed after the import"):
        open_whole(backend, runtime, artefact, "0" * 64)
    (artefact / MODEL_FILE).unlink()
    with pytest.raises(PreconditionFailed, match="kept no file"):
        open_whole(backend, runtime, artefact, "0" * 64)
    backend.close()


def test_a_provider_that_is_not_there_is_named(artefact: Path) -> None:
    with pytest.raises(PreconditionFailed, match="CUDAExecutionProvider"):
        OnnxSession(artefact / MODEL_FILE, EnginePlace(1), CUDA_PROVIDER)


@EACH_ENGINE
def test_what_an_engine_refuses_is_an_error_of_ours(engine: str, tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).write_bytes(b"not a model")

    with pytest.raises(PreconditionFailed, match="refuses"):
        opened(engine, tmp_path / MODEL_FILE)


def test_sessions_are_shared_while_used_and_closed_after(table: ModelTable, artefact: Path) -> None:
    digest = file_digest(artefact / MODEL_FILE)
    table.load(digest, artefact)

    first = table.session(ONNXRUNTIME, digest)
    assert table.session(ONNXRUNTIME, digest) is first
    del first

    second = table.session(ONNXRUNTIME, digest)
    np.testing.assert_array_equal(
        second.run({"x": np.ones((1, 3, 16, 16), np.float32)})["y"].shape[0], 1
    )


def test_work_in_a_thread_gives_inference_its_turns_and_passes_errors_on() -> None:
    ours, theirs = socket.socketpair()
    answered: list[bytes] = []

    class Answering(YieldToRequests):
        @property
        def arrivals(self) -> int | None:
            return theirs.fileno()

        def answer(self) -> bool:
            answered.append(theirs.recv(1))
            return True

    def slow() -> int:
        for request in (b"a", b"b"):
            ours.send(request)
            while request not in answered:
                time.sleep(0.001)
        return 7

    def fails() -> int:
        raise PreconditionFailed("no")

    pause = NetClock(Answering())
    assert in_thread(slow, pause) == 7
    assert (answered, pause.count) == ([b"a", b"b"], 2)
    with pytest.raises(PreconditionFailed):
        in_thread(fails, pause)
    ours.close()
    theirs.close()


def test_another_device_gets_its_inputs_anew_for_each_run(artefact: Path) -> None:
    session = OnnxSession(artefact / MODEL_FILE, EnginePlace(1))
    x = np.zeros((1, 3, 16, 16), np.float32)
    place = {name: np.empty_like(each) for name, each in session.run({"x": x}).items()}
    session._binds = False

    for value in (1.0, 2.0):
        x.fill(value)
        session.run_into({"x": x}, place)

        for name, wanted in session.run({"x": x}).items():
            assert np.array_equal(place[name], wanted)
    assert not session._bound


@pytest.mark.parametrize(
    ("dtype", "divisor", "refused"),
    [
        ("INT64", None, True),
        ("INT32", [-1], True),
        ("INT64", [3], False),
        ("FP32", None, False),
        ("UINT8", None, False),
    ],
)
def test_no_request_can_have_the_least_integer_divided_by_minus_one(
    dtype: str, divisor: list[int] | None, refused: bool
) -> None:
    spec = TensorType(dtype, (1,))
    inputs = {"a": spec} if divisor else {"a": spec, "b": spec}
    constants = {"b": np.array(divisor)} if divisor else {}
    unit = Operator("quotient", "aten.div", ("a", "b"), ("y",), {"truncate": True})
    graph = OpGraph("one", inputs, {"y": "y"}, dict.fromkeys(constants, spec), (unit,), {"y": spec})

    if not refused:
        check_division(graph, constants.get)
        return
    with pytest.raises(PreconditionFailed, match="by -1 in 'quotient'"):
        check_division(graph, constants.get)
