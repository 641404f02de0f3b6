"""Padded requests are answered again unpadded, through a real worker; errors forbid padding."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from braid.compiler.options import ModelOptions
from braid.core.padding import BY_REQUEST, ZEROS, PaddedAxis, PaddedInput
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import SEQUENTIAL
from braid.server.devices.device import Device
from braid.server.inference.requests import OutputTensor
from braid.server.inference.routing import QueuedReplica
from braid.server.models.padding_checks import PaddingChecks, error_of
from braid.server.store.store import Store
from tests.models.of_any_length import masked_attention, pooling
from tests.server.inference.batching import Watcher
from tests.server.inference.test_any_shape_device import RAN, SLOW, Served, device, served
from tests.server.jobs.fakes import a_moment

__all__ = ["device"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRONG = PaddedAxis(*("length", True, {"x": PaddedInput(1, ZEROS)}, {}, 64, 0.0, BY_REQUEST, ""))
"""A verdict on a mean over the length, as it must never be."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(tmp_path / "store")) as store:
        yield store


def checks(under: Served, store: Store) -> PaddingChecks:
    queued = QueuedReplica(under.replica, under.batcher)
    return PaddingChecks(lambda: [queued], lambda _: Watcher(), a_moment, store, 1e-4)


async def test_padding_that_is_exact_stays(device: Device, store: Store, tmp_path: Path) -> None:
    random, model = np.random.default_rng(1), masked_attention()
    options = ModelOptions((1, 4), lengths="8,24,48")
    async with served(device, model, tmp_path, SLOW, options=options) as under:
        looks, verdicts = checks(under, store), under.replica.padding
        await under.check(model.inputs(random, 1, 24))
        await looks.look()
        assert under.replica.lengths.checked == 0, "none ran padded"

        for _ in range(3):
            await under.check(model.inputs(random, 3, 17))
            await looks.look()

        assert under.replica.lengths.checked == 1, "one of a thousand"
        assert under.replica.padding == verdicts
        assert (await under.check(model.inputs(random, 1, 17))).startswith(SEQUENTIAL)


async def test_a_wrong_answer_forbids_padding_and_the_report_says_so(
    device: Device, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random, model = np.random.default_rng(2), pooling()
    options = ModelOptions((1, 4), lengths="8,24,48")
    async with served(device, model, tmp_path, SLOW, options=options, padding=(WRONG,)) as under:
        with pytest.raises(AssertionError):  # not equal to the reference
            await under.check(model.inputs(random, 1, 17))

        await checks(under, store).look()

        (axis,) = under.replica.padding
        assert not axis.exact
        assert "as it was padded; 0.0001 is allowed" in axis.reason
        assert "requests are not padded any more" in caplog.text
        assert await under.check(model.inputs(random, 1, 17)) == ONNXRUNTIME
        assert "as it was padded" in store.padding_failure(under.replica.model)


async def test_requests_that_shared_a_batch_are_checked_too(
    device: Device, store: Store, tmp_path: Path
) -> None:
    random, model = np.random.default_rng(3), pooling()
    async with served(device, model, tmp_path, RAN, padding=(WRONG,)) as under:
        async with asyncio.timeout(120):
            while under.replica.lengths.sample is None:  # each may have run alone
                async with asyncio.TaskGroup() as requests:
                    for length in range(41, 49):
                        requests.create_task(under.infer(model.inputs(random, 1, length)))

        await checks(under, store).look()

        assert under.replica.lengths.failure
        async with asyncio.TaskGroup() as requests:
            for length in range(41, 49):
                requests.create_task(under.check(model.inputs(random, 1, length)))


@pytest.mark.parametrize(
    ("dtype", "got", "wanted", "error"),
    [
        ("FP32", [1.0, 2.0], [1.0, 4.0], 0.5),
        ("FP32", [np.inf, np.nan, 3.0], [np.inf, np.nan, 2.0], 0.5),
        ("FP32", [np.nan], [1.0], np.nan),
        ("FP32", [1.0], [0.0], np.inf),
        ("FP32", [0.0], [0.0], 0.0),
        ("FP16", [1.0, -8.0], [1.0, -4.0], 1.0),
        ("INT64", [3, 7], [3, 8], 0.125),
        ("BOOL", [True, False], [True, True], 1.0),
        ("FP32", [], [], 0.0),
    ],
)
async def test_errors_are_relative_to_the_largest_element(
    dtype: str, got: list[float], wanted: list[float], error: float
) -> None:
    types = {"FP32": "<f4", "FP16": "<f2", "INT64": "<i8", "BOOL": "?"}

    def answer(values: list[float]) -> dict[str, OutputTensor]:
        array = np.array(values, types[dtype])
        return {"y": OutputTensor(dtype, array.shape, array.tobytes())}

    assert error_of(answer(got), answer(wanted)) == pytest.approx(error, nan_ok=True)


async def test_an_answer_of_another_shape_is_wrong() -> None:
    one, two = (OutputTensor("FP32", (n,), bytes(4 * n)) for n in (1, 2))

    assert error_of({"y": one}, {"y": two}) == np.inf
