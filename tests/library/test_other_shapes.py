"""Networks in shapes that they were not compiled for, against ONNX Runtime on the same request."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import braid
from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest
from braid.core.plan import sequential_plan
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import SEQUENTIAL, Contender, Provenance, Schedule
from braid.core.shapes import LEAST_BYTES, PART, Key
from braid.engine.importer.host.report import file_digest
from braid.engine.link.options import WorkerOptions
from braid.engine.runtime.arrays import Arrays
from braid.library.compiled import Compiled
from braid.library.network import Network
from tests.engine.importer.running import import_here
from tests.library.conftest import import_ahead
from tests.models.of_any_length import ALL, AnyLength, Array, masked_attention, pooling

OPTIONS = WorkerOptions(2, 1 << 26, 1 << 20, 1)
TOLERANCE = 1e-4

RAN = Contender(ONNXRUNTIME, latency_us=1.0)
FAILED = Contender(ONNXRUNTIME, remark="the process ended")


class Checked:
    """A network beside ONNX Runtime."""

    def __init__(self, net: Network, path: Path) -> None:
        self.net = net
        self._reference = onnxruntime.InferenceSession(path)

    def check(self, inputs: Mapping[str, Array]) -> None:
        outputs = self.net(dict(inputs))
        wanted = self._reference.run(None, dict(inputs))
        for port, expected in zip(self._reference.get_outputs(), wanted, strict=True):
            got = outputs[port.name] if isinstance(outputs, dict) else outputs
            assert got.shape == expected.shape
            largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-6)
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * largest)


@contextmanager
def network(
    model: onnx.ModelProto,
    folder: Path,
    *candidates: Contender,
    options: WorkerOptions = OPTIONS,
    reference: str = "onnxruntime 1.31.0",
) -> Iterator[Checked]:
    """A network whose schedules compared these candidates, and run sequentially.

    Its import compared it with ``reference``.
    """
    upload = folder / "model.onnx"
    upload.write_bytes(model.SerializeToString())
    digest = file_digest(upload)
    imported = read_imported(digest, ModelOptions((1, 4)), import_here(upload, folder / "artefact"))
    verified = replace(imported.report.verified, reference=reference)
    imported = replace(imported, report=replace(imported.report, verified=verified))
    compared = Provenance(promoted=False, candidates=candidates)
    schedules = {
        size: Schedule(
            *(imported.schedule_key("cpu", size), SEQUENTIAL, sequential_plan(0), (), ()), compared
        )
        for size in imported.batch_sizes
    }
    with Network("m", Compiled(imported, schedules, {}, options)) as net:
        yield Checked(net, upload)


@contextmanager
def at_lengths(
    model: onnx.ModelProto, folder: Path, latencies_us: Mapping[int, tuple[float, float]]
) -> Iterator[Checked]:
    """A network of several lengths; what each plan took in its comparison, and ONNX Runtime."""
    upload = folder / "model.onnx"
    upload.write_bytes(model.SerializeToString())
    lengths = ",".join(map(str, latencies_us))
    options = ModelOptions((1, 4), pad={"length": "zeros"}, lengths=lengths)
    artefact = import_here(upload, folder / "artefact")
    shapes = []
    imported = read_imported(file_digest(upload), options, artefact)
    for one, (plan_us, session_us) in zip(imported.at_shapes(), latencies_us.values(), strict=True):
        ran = Contender(ONNXRUNTIME, latency_us=session_us)
        compared = Provenance(promoted=False, sequential_us=plan_us, candidates=(ran,))
        key = one.schedule_key("cpu", 1)
        schedule = Schedule(key, SEQUENTIAL, sequential_plan(0), (), (), compared)
        shapes.append(Compiled(one, {1: schedule}, {}, OPTIONS))
    with Network("m", replace(shapes[0], lengths=tuple(shapes[1:]))) as net:
        yield Checked(net, upload)


def test_calls_are_padded_to_compiled_lengths_where_their_plans_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, model = np.random.default_rng(7), masked_attention()
    latencies_us = {8: (10.0, 20.0), 24: (30.0, 60.0), 48: (1000.0, 120.0)}
    with at_lengths(model.model, tmp_path, latencies_us) as checked:
        ran, run = set[int](), checked.net.other_shapes.run

        def watched(key: Key, given: Arrays) -> Arrays:
            ran.add(given["ids"].shape[1])
            return run(key, given)

        monkeypatch.setattr(checked.net.other_shapes, "run", watched)
        for length in (8, 5, 3, 9, 17, 24, 30, 48, 60):
            for rows in (1, 3, 6):
                checked.check(model.inputs(random, rows, length))
        hidden = dict(model.inputs(random, 2, 20))
        hidden["mask"] = np.zeros_like(hidden["mask"])  # attention spreads over all its words
        checked.check(hidden)

    # 3 and 9 take less in the session than 8 and 24 do in plans; the plan of 48 is slower.
    assert ran == {3, 9, 30, 60, 20}


def test_a_call_whose_inputs_have_different_lengths_is_refused(tmp_path: Path) -> None:
    random, model = np.random.default_rng(8), masked_attention()
    with at_lengths(model.model, tmp_path, {8: (1.0, 100.0)}) as checked:
        inputs = dict(model.inputs(random, 1, 5))
        inputs["mask"] = np.ones((1, 6), np.int64)
        with pytest.raises(InvalidRequest, match="broadcast"):
            checked.net(inputs)


def test_lengths_are_compiled_saved_and_loaded(tmp_path: Path, store: Path) -> None:
    random, model = np.random.default_rng(9), masked_attention()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.model.SerializeToString())
    import_ahead(path, store)
    kinds = {"batch_sizes": [1, 2], "planner": "sequential", "store": store}
    pad = {"length": "zeros"}
    with braid.compile(path, pad=pad, lengths=[16, 8], **kinds) as net:  # type: ignore[arg-type]
        plan_ids = net.plan_ids
        for length in (3, 8, 13, 16, 40):
            Checked(net, path).check(model.inputs(random, 3, length))
        net.save(tmp_path / "saved")
    with braid.load(tmp_path / "saved") as loaded:
        assert loaded.plan_ids == plan_ids
        for length in (8, 13, 16, 40):
            Checked(loaded, path).check(model.inputs(random, 3, length))


def test_lengths_of_a_model_that_padding_changes_are_refused(tmp_path: Path, store: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(pooling().model.SerializeToString())
    import_ahead(path, store)

    with pytest.raises(InvalidRequest, match="by zeros has an error of"):
        braid.compile(path, pad={"length": "zeros"}, lengths=[8, 16], store=store)


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.__name__)
def test_requests_of_any_length_equal_the_reference_and_nothing_is_prepared(
    of: Callable[[], AnyLength], tmp_path: Path
) -> None:
    random, model = np.random.default_rng(0), of()
    with network(model.model, tmp_path, RAN) as checked:
        for _ in range(60):
            length, rows = random.integers(3, 200), random.integers(1, 6)
            checked.check(model.inputs(random, int(rows), int(length)))

        assert checked.net.other_shapes.prepared == 0


def test_a_compiled_network_answers_any_length(tmp_path: Path, store: Path) -> None:
    random, model = np.random.default_rng(1), pooling()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.model.SerializeToString())
    with braid.compile(import_ahead(path, store), batch_sizes=[1], store=store) as net:
        net.save(tmp_path / "saved")
        for length in (3, 77, 200):
            Checked(net, path).check(model.inputs(random, 3, length))
        assert net.other_shapes.prepared == 0
    with braid.load(tmp_path / "saved") as loaded:
        Checked(loaded, path).check(model.inputs(random, 2, 50))
        assert loaded.other_shapes.prepared == 0


def test_a_shape_that_comes_often_gets_an_executable_with_the_same_outputs(tmp_path: Path) -> None:
    random, model = np.random.default_rng(2), masked_attention()
    with network(model.model, tmp_path, RAN) as checked:
        inputs = model.inputs(random, 2, 500)
        while not checked.net.other_shapes.prepared:
            checked.check(inputs)
        for _ in range(20):  # both ways in turns, then one of them
            checked.check(inputs)

        assert checked.net.other_shapes.prepared == 1


@pytest.mark.parametrize(
    ("candidates", "reference", "prepared"),
    [
        ((FAILED,), "onnxruntime 1.31.0", 2),
        ((), "onnxruntime 1.31.0", 0),  # the import decides
        ((), "onnx 1.20.0 reference", 2),
    ],
)
def test_without_a_runtime_that_was_right_shapes_are_prepared_as_they_come(
    candidates: tuple[Contender, ...], reference: str, prepared: int, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(3), masked_attention()
    with network(model.model, tmp_path, *candidates, reference=reference) as checked:
        for length in (11, 12, 11):
            checked.check(model.inputs(random, 3, length))

        assert checked.net.other_shapes.prepared == prepared


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_file_of_one_row_answers_any_number_of_rows_in_any_length(
    count: int, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(4), pooling()
    for tensor in (*model.model.graph.input, *model.model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    with network(model.model, tmp_path, RAN) as checked:
        for length in (5, 60):
            x = model.inputs(random, count, length)["x"]
            np.testing.assert_allclose(checked.net(x), x.mean(axis=1), rtol=0, atol=1e-5)


def test_nan_and_infinity_come_out_as_the_reference_has_them(tmp_path: Path) -> None:
    (of,) = (model for model in ALL if model.__name__ == "convolution_over_time")
    with network(of().model, tmp_path, RAN) as checked:
        x = np.ones((2, 4, 31), np.float32)
        x[0, 1, 5], x[1, 2, 20] = np.nan, np.inf
        checked.check({"x": x})

        assert checked.net.other_shapes.prepared == 0


def test_no_rows_and_a_length_of_zero_are_answered(tmp_path: Path) -> None:
    with network(masked_attention().model, tmp_path, RAN) as checked:
        for shape in ((0, 3), (2, 0)):
            none = np.zeros(shape, np.int64)
            checked.check({"ids": none, "mask": none})


def test_executables_are_bounded_in_bytes_and_give_their_programs_back(tmp_path: Path) -> None:
    random, model = np.random.default_rng(5), pooling()
    least = replace(OPTIONS, threads=1, memory_bytes=3 * PART * LEAST_BYTES)
    with network(model.model, tmp_path, FAILED, options=least) as checked:
        for length in (*range(3, 20), 4, 3):
            checked.check(model.inputs(random, 1, length))

        shapes = checked.net.other_shapes
        assert shapes.prepared - shapes.dropped == 3
