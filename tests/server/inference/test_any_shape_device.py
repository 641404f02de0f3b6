"""Requests of any length through a real worker, against ONNX Runtime on the same request alone."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import pytest_asyncio

from braid.compiler.imported_model import read_imported
from braid.compiler.options import ModelOptions
from braid.core.errors import InvalidRequest, Unavailable
from braid.core.inputs import GivenTensor
from braid.core.padding import ZEROS, PaddedAxis
from braid.core.plan import sequential_plan
from braid.core.program import PlanToRun
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import SEQUENTIAL, Contender, Provenance, Schedule
from braid.engine.importer.host.report import MODEL_FILE, file_digest
from braid.engine.link.options import WorkerOptions
from braid.server.devices.device import Device
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.batching.execution import BatchResult, DeviceExecution, OnWait, Running
from braid.server.inference.batching.queues import Batch
from braid.server.inference.lengths import elements_of
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import CheckedRequest, GivenRequest, check_request
from braid.server.store.records import ModelVersion
from tests.engine.importer.running import import_here
from tests.models.graphs import from_x
from tests.models.of_any_length import (
    ALL,
    WORDS,
    AnyLength,
    Array,
    convolution_over_time,
    masked_attention,
    pooling,
)
from tests.server.inference.batching import Watcher

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = WorkerOptions(2, 1 << 26, 1 << 20, 1)
TOLERANCE = 1e-4
DTYPES = {"float32": "FP32", "int64": "INT64"}

RAN = Contender(ONNXRUNTIME, latency_us=1.0)
FAILED = Contender(ONNXRUNTIME, remark="the process ended")
ERRED = Contender(ONNXRUNTIME, latency_us=1.0, max_rel_error=1.0, remark="outputs differ")


class Counting(DeviceExecution):
    """Counts batches that ended well, by how many the device ran side by side."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.ran = Counter[int]()

    def run(self, batch: Batch, on_wait: OnWait, *, may_explore: bool) -> Running:
        running = super().run(batch, on_wait, may_explore=may_explore)

        async def counted() -> BatchResult:
            result = await running
            self.ran[batch.beside] += 1
            return result

        return counted()


@dataclass(frozen=True)
class Served:
    """A model that answers on a device."""

    replica: ModelReplica
    batcher: Batcher
    reference: onnxruntime.InferenceSession
    ran: Counter[int]  # batches that ended well, by how many the device ran side by side

    def request(self, inputs: Mapping[str, Array]) -> CheckedRequest:
        given = [
            GivenTensor(name, DTYPES[array.dtype.name], array.shape, array.tobytes())
            for name, array in inputs.items()
        ]
        return check_request(self.replica, GivenRequest("", given, ()))

    async def infer(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], str]:
        """Outputs, and the plan that ran."""
        answer = await self.batcher.submit(self.replica, self.request(inputs), Watcher())
        types = {dtype: name for name, dtype in DTYPES.items()}
        outputs = {
            name: np.frombuffer(bytes(tensor.data), types[tensor.dtype]).reshape(tensor.shape)
            for name, tensor in answer.outputs.items()
        }
        return outputs, answer.plan_id

    async def check(self, inputs: Mapping[str, Array]) -> str:
        """Compare the answer with ONNX Runtime's; returns the plan that ran."""
        outputs, plan_id = await self.infer(inputs)
        wanted = self.reference.run(None, dict(inputs))
        for port, expected in zip(self.reference.get_outputs(), wanted, strict=True):
            got = outputs[port.name]
            assert got.shape == expected.shape
            largest = np.abs(expected[np.isfinite(expected)]).max(initial=1e-6)
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * largest)
        return plan_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def device() -> AsyncIterator[Device]:
    device = Device("cpu", OPTIONS)
    await device.start()
    yield device
    await device.close()


@asynccontextmanager
async def served(
    device: Device,
    of: AnyLength,
    folder: Path,
    *candidates: Contender,
    keeps_file: bool = True,
    reference: str = "onnxruntime 1.31.0",
    options: ModelOptions | None = None,
    padding: tuple[PaddedAxis, ...] | None = None,
) -> AsyncIterator[Served]:
    """The model under the schedule of a registration that compared these candidates.

    Its import compared it with ``reference``, and found ``padding``; None: what is right. The
    registration asks for zeros along the length where rows share batches and trials agree.
    """
    upload = folder / "model.onnx"
    upload.write_bytes(of.model.SerializeToString())
    digest = file_digest(upload)
    options = options or ModelOptions((1, 4))
    imported = read_imported(digest, options, import_here(upload, folder / "artefact"))
    verified = replace(imported.report.verified, reference=reference)
    report = replace(imported.report, verified=verified)
    if padding is not None:
        report = replace(report, padding=padding)
    axes = report.padding if report.batch is not None else ()
    asked = {one.axis: ZEROS for one in axes if one.tried.get(ZEROS, 1.0) <= TOLERANCE}
    options = replace(imported.options, pad=asked)
    imported = replace(imported, options=options, report=report)
    version = ModelVersion("m", 1, digest, 1, imported.options)
    replica = ModelReplica(version, imported, device)
    await device.load(digest, imported.artefact)
    if not keeps_file:
        (imported.artefact / MODEL_FILE).unlink()
    for at_shape in imported.at_shapes():
        for size in at_shape.batch_sizes:
            graph = await device.describe(at_shape.program(size))
            names = tuple(operator.name for operator in graph.operators)
            key = at_shape.schedule_key(device.device_key, size)
            compared = Provenance(measured_us=1.0, sequential_us=1.0, candidates=candidates)
            plan = sequential_plan(len(names))
            schedule = Schedule(key, SEQUENTIAL, plan, (), names, compared)
            await replica.use_plan(size, schedule, replica.scheduled[key.shapes])
    execution = Counting(device)
    batcher = Batcher(execution)
    yield Served(replica, batcher, onnxruntime.InferenceSession(str(upload)), execution.ran)
    await batcher.drain()
    await replica.close()


async def test_a_length_of_zero_is_answered(device: Device, tmp_path: Path) -> None:
    model = masked_attention()
    async with served(device, model, tmp_path, RAN) as under:
        none = np.zeros((2, 0), np.int64)

        await under.check({"ids": none, "mask": none})

        assert under.replica.other_shapes.prepared == 1


async def test_a_bad_value_is_the_callers_and_later_requests_go_on(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(2), masked_attention()
    async with served(device, model, tmp_path, RAN) as under:
        inputs = model.inputs(random, 1, 41)
        with pytest.raises(InvalidRequest, match="index 16"):
            await under.infer({**inputs, "ids": np.full((1, 41), WORDS)})

        await under.check(inputs)
        assert await under.check(model.inputs(random, 1, 42)) == ONNXRUNTIME


@pytest.mark.parametrize(
    ("candidates", "how", "answers"),
    [
        ((ERRED,), {}, SEQUENTIAL),
        ((FAILED,), {}, SEQUENTIAL),
        ((RAN,), {"keeps_file": False}, SEQUENTIAL),
        ((), {"reference": "onnx 1.20.0 reference"}, SEQUENTIAL),
        ((), {}, ONNXRUNTIME),
    ],
    ids=["refused", "failed", "without a file", "not in the import", "in the import only"],
)
async def test_without_a_runtime_that_was_right_shapes_are_prepared_as_they_come(
    device: Device, tmp_path: Path, candidates: tuple[Contender, ...], how: Any, answers: str
) -> None:
    random, model = np.random.default_rng(3), masked_attention()
    async with served(device, model, tmp_path, *candidates, **how) as under:
        plans = {await under.check(model.inputs(random, 1, length)) for length in (11, 12, 11)}

        assert plans == {answers}
        assert under.replica.other_shapes.prepared == (2 if answers == SEQUENTIAL else 0)


async def test_outputs_that_outgrow_their_first_room_are_whole(
    device: Device, tmp_path: Path
) -> None:
    (of,) = (model for model in ALL if model.__name__ == "convolution_over_time")
    model, random = of(), np.random.default_rng(4)
    async with served(device, model, tmp_path, RAN) as under:
        for length in (3, 20_000, 5, 30_000):
            await under.check(model.inputs(random, 3, length))
        assert under.replica.other_shapes.prepared == 0


async def test_a_session_counts_as_the_models_file_however_many_use_it(
    device: Device, tmp_path: Path
) -> None:
    model = masked_attention()
    size_bytes = model.model.ByteSize()
    async with served(device, model, tmp_path, RAN) as under:
        digest = under.replica.digest
        assert device.model_memory[digest].sessions == size_bytes

        fixed = PlanToRun(under.replica.program(1), runtime=ONNXRUNTIME)
        ready = await device.prepare(fixed)
        assert device.model_memory[digest].sessions == size_bytes
        await device.release(ready)


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.__name__)
async def test_requests_side_by_side_equal_the_reference_and_nothing_is_prepared(
    device: Device, tmp_path: Path, of: Callable[[], AnyLength]
) -> None:
    random, model = np.random.default_rng(9), of()
    async with served(device, model, tmp_path, RAN) as under:
        await under.replica.open_beside()
        async with asyncio.TaskGroup() as requests:
            for at in range(60):
                rows, length = int(random.integers(1, 4)), int(random.integers(3, 60))
                inputs = dict(model.inputs(random, rows, length))
                if at % 10 == 0 and "x" in inputs and of in (convolution_over_time, pooling):
                    inputs["x"][0, 0, 1] = np.nan
                requests.create_task(under.check(inputs))
        assert under.ran.keys() >= {1, 2}, "on all threads, and side by side"
        assert under.replica.other_shapes.prepared == 0
        assert device.model_memory[under.replica.digest].sessions == 2 * model.model.ByteSize()


async def test_a_session_side_by_side_is_opened_once_requests_wait_for_others(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(10), pooling()
    async with served(device, model, tmp_path, RAN) as under, asyncio.timeout(120):
        while 2 not in under.ran:
            await burst(under, model, random)


async def test_a_new_worker_runs_side_by_side_as_the_one_before(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(11), pooling()
    async with served(device, model, tmp_path, RAN) as under, asyncio.timeout(120):
        await under.replica.open_beside()
        os.kill(device.pids["serving"], signal.SIGKILL)
        while 2 not in under.ran:
            try:
                await burst(under, model, random)
            except* Unavailable:  # it is not up again yet
                await asyncio.sleep(0.05)


async def burst(under: Served, model: AnyLength, random: np.random.Generator) -> None:
    """Have 30 requests of many lengths wait at once."""
    async with asyncio.TaskGroup() as requests:
        for length in random.integers(3, 300, 30):
            requests.create_task(under.check(model.inputs(random, 1, int(length))))


async def test_near_lengths_share_batches_only_where_padding_is_exact(
    device: Device, tmp_path: Path
) -> None:
    for of, shared in ((masked_attention, True), (pooling, False)):
        random, model = np.random.default_rng(6), of()
        (tmp_path / of.__name__).mkdir()
        async with served(device, model, tmp_path / of.__name__, RAN) as under:
            inputs = [model.inputs(random, 1, length) for length in range(41, 49)]
            assert (await most_rows(under, inputs) > 1) == shared


async def most_rows(under: Served, inputs: Sequence[Mapping[str, Array]]) -> int:
    """Rows of the largest batch of ten crowds of requests, where large batches hardly take more.

    What the first runs on a busy machine took would decide else.
    """
    times = under.replica.shape_times
    times.beside = 1  # else they may run side by side
    for rows, x in product(range(1, 9), inputs):
        for _ in range(30):
            elements = rows * elements_of(under.request(x).shape_class)
            times.observe(elements, 1.0 + rows / 100)
    submit, most = under.batcher.submit, 0
    for _ in range(10):
        results = await asyncio.gather(
            *(submit(under.replica, under.request(x), Watcher()) for x in inputs)
        )
        most = max(most, *(result.batch_rows for result in results))
    return most


async def test_a_request_whose_mask_hides_its_first_word_is_not_padded(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(7), masked_attention()
    async with served(device, model, tmp_path, RAN) as under, asyncio.TaskGroup() as requests:
        for length in (*range(9, 16), *range(9, 16)):
            inputs = dict(model.inputs(random, 1, length))
            inputs["mask"] = np.zeros_like(inputs["mask"])  # attention spreads over all its words
            requests.create_task(under.check(inputs))


async def test_a_file_may_declare_another_length_than_its_output_has(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(8), masked_attention()
    model.model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 16  # as exporters do
    async with served(device, model, tmp_path, RAN) as under:
        plans = {await under.check(model.inputs(random, 1, length)) for length in (11, 12, 13)}
        assert plans == {ONNXRUNTIME}
        assert under.replica.other_shapes.prepared == 0


async def test_each_of_several_scheduled_shapes_runs_its_own_plan(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(9), pooling()
    (port,) = model.inputs(random, 1, 8)
    shapes = [{port: model.inputs(random, 1, length)[port].shape} for length in (8, 24, 40)]
    options = ModelOptions((1, 4), input_shapes=shapes[0], more_shapes=tuple(shapes[1:]))
    async with served(device, model, tmp_path, RAN, options=options) as under:
        for rows in (1, 3, 5):
            plans = [await under.check(model.inputs(random, rows, n)) for n in (8, 24, 40, 32)]
            assert [plan.partition("-")[0] for plan in plans] == [*[SEQUENTIAL] * 3, ONNXRUNTIME]
        assert under.replica.other_shapes.prepared == 0


SLOW = Contender(ONNXRUNTIME, latency_us=1e6)


@pytest.mark.parametrize("of", ALL, ids=lambda of: of.__name__)
async def test_requests_padded_to_scheduled_lengths_equal_the_reference(
    device: Device, tmp_path: Path, of: Callable[[], AnyLength]
) -> None:
    random, model = np.random.default_rng(10), of()
    options = ModelOptions((1, 4), lengths="8,24,48")
    try:
        async with served(device, model, tmp_path, SLOW, options=options) as under:
            for length in (8, 5, 24, 9, 47, 60):
                ran = await under.check(model.inputs(random, 1, length))
                assert ran.startswith(SEQUENTIAL if length <= 48 else ONNXRUNTIME)
            assert under.replica.other_shapes.prepared == 0
            async with asyncio.TaskGroup() as requests:
                for _ in range(60):
                    rows, length = int(random.integers(1, 4)), int(random.integers(1, 60))
                    inputs = dict(model.inputs(random, rows, length))
                    if "mask" in inputs and random.random() < 0.2:
                        inputs["mask"] = np.zeros_like(inputs["mask"])  # is not padded
                    requests.create_task(under.check(inputs))
    except InvalidRequest as error:  # padding is not exact
        assert "not padded" in str(error)  # noqa: PT017
        assert of is not masked_attention


async def test_a_request_that_waits_is_not_padded_where_runs_side_by_side_compute_more(
    device: Device, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(9), masked_attention()
    plan_faster = replace(RAN, latency_us=1.25)  # by a fifth, than the session in the comparison
    options = ModelOptions((1,), lengths="64")
    async with served(device, model, tmp_path, plan_faster, options=options) as under:
        replica, request = under.replica, under.request(model.inputs(random, 1, 60))
        bucket = replica.lane_of(request)
        assert bucket in replica.scheduled.values()
        assert replica.lane_of(request, waiting=3) == bucket, "no run is side by side"

        replica.shape_times.beside = 2
        elements = elements_of(request.shape_class)
        for _ in range(30):
            replica.shape_times.observe(elements, 1.0)
        replica.expect(1, 1.0e6, request.shape_class)
        for _ in range(30):
            replica.shape_times.observe(elements, 1.5, 2)
        replica.latencies(bucket).expect(1, 0.9)

        assert replica.shape_times.goes_beside
        assert replica.lane_of(request, waiting=3) != bucket
        assert replica.lane_of(request) == bucket, "a lone one has all threads"

        for _ in range(30):
            replica.shape_times.weigh(1.0, 0.75)  # of most others
        replica.latencies(bucket).expect(1, 0.6)
        assert replica.lane_of(request, waiting=3) != bucket, "parts would idle before and after"
        replica.latencies(bucket).expect(1, 0.2)
        assert replica.lane_of(request, waiting=3) == bucket


async def test_lengths_of_one_bucket_share_batches(device: Device, tmp_path: Path) -> None:
    random, model = np.random.default_rng(11), masked_attention()
    options = ModelOptions((1, 4), lengths="48")
    async with served(device, model, tmp_path, SLOW, options=options) as under:
        inputs = [model.inputs(random, 1, length) for length in range(3, 48, 4)]
        results = await asyncio.gather(
            *(under.batcher.submit(under.replica, under.request(x), Watcher()) for x in inputs)
        )
        assert max(result.batch_rows for result in results) > 1
        assert {result.plan_id.partition("-")[0] for result in results} == {SEQUENTIAL}


async def test_a_size_that_pays_at_one_shape_is_formed_there_only(
    device: Device, tmp_path: Path
) -> None:
    options = ModelOptions((1, 4), lengths="8,24")
    async with served(device, masked_attention(), tmp_path, RAN, options=options) as under:
        replica = under.replica
        main, other = replica.scheduled.values()
        await replica.use_plan(16, of=other)
        replica.expect(8, 10.0)

        unscheduled = under.request(masked_attention().inputs(np.random.default_rng(1), 1, 5))
        assert replica.latencies(main).sizes == (1, 4, 8)
        assert replica.latencies(other).sizes == (1, 4, 16)
        sizes = replica.latencies(unscheduled.shape_class).sizes  # any, in the session
        assert sizes == tuple(range(1, 9))


def fixed_width(rows: str | int) -> AnyLength:
    """A model whose only open extent is the number of rows; the batch is of ``rows``."""
    body = "m = ReduceMax<axes=[1], keepdims=1>(x)  y = Sub(x, m)"
    made = from_x(body if rows != 1 else "y = Softmax<axis=0>(x)", f"{rows}, 6")
    return AnyLength(made, lambda random, count, _: {"x": random.random((count, 6), np.float32)})


async def test_a_request_of_many_rows_runs_at_once(device: Device, tmp_path: Path) -> None:
    random, of = np.random.default_rng(9), fixed_width("n")
    async with served(device, of, tmp_path, RAN, options=ModelOptions((1, 2))) as under:
        await under.check(of.inputs(random, 50, 0))  # cut, and opens the session
        assert under.replica.shape_times.compared_s(1) is None
        opening = under.replica._opening
        assert opening is not None
        await opening
        before = under.ran.total()

        plans = [await under.check(of.inputs(random, 50, 0)) for _ in range(2)]

        assert plans[0] == ONNXRUNTIME
        assert under.ran.total() - before < 50 / 2
        assert await under.check(of.inputs(random, 2, 0)) != ONNXRUNTIME


async def test_rows_of_a_model_of_one_row_never_run_at_once(device: Device, tmp_path: Path) -> None:
    random, of = np.random.default_rng(9), fixed_width(1)
    async with served(device, of, tmp_path, RAN, options=ModelOptions((1,))) as under:
        for _ in range(3):
            outputs, _ = await under.infer(of.inputs(random, 9, 0))

            np.testing.assert_array_equal(outputs["y"], np.ones((9, 6), np.float32))
        assert under.ran.total() == 27


async def test_requests_without_rows_shift_no_answer(device: Device, tmp_path: Path) -> None:
    random, of = np.random.default_rng(10), fixed_width("n")
    async with served(device, of, tmp_path, RAN, options=ModelOptions((1, 4, 8))) as under:
        given = [of.inputs(random, int(rows), 0) for rows in random.integers(0, 4, 60)]

        answers = await asyncio.gather(*(under.infer(inputs) for inputs in given))

        for inputs, (outputs, _) in zip(given, answers, strict=True):
            largest = inputs["x"].max(1, initial=-np.inf, keepdims=True)
            np.testing.assert_allclose(outputs["y"], inputs["x"] - largest)
