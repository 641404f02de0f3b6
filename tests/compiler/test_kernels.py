"""Kernels are chosen by measurement, once for each signature and device."""

from dataclasses import replace
from pathlib import Path

import pytest

from braid.compiler.kernels import choose_kernels, fastest
from braid.compiler.results import Cache
from braid.compiler.retries import RetryPauses, RetryWhileRestarting
from braid.core.program import ProgramKey
from braid.core.tensor import TensorType
from tests.server.jobs.fakes import Server, template


@pytest.mark.parametrize(
    ("usual_us", "other_us", "chosen"),
    [(100.0, 80.0, "other"), (100.0, 97.0, "usual"), (12.0, 8.0, "usual"), (10.0, 90.0, "usual")],
)
def test_another_kernel_must_be_faster_by_more_than_noise(
    usual_us: float, other_us: float, chosen: str
) -> None:
    assert fastest({"usual": usual_us, "other": other_us}) == chosen


def test_on_a_gpu_less_is_gained_at_once() -> None:
    assert fastest({"usual": 12.0, "other": 8.0}, "cuda:0") == "other"
    assert fastest({"usual": 4.0, "other": 3.6}, "cuda:0") == "usual"


def program_of(letter: str) -> ProgramKey:
    return ProgramKey(letter * 64, (("x", TensorType("FP32", (1, 8))),))


async def test_the_fastest_kernel_is_chosen_and_remembered(tmp_path: Path) -> None:
    server = Server(tmp_path / "store")
    device, graph = server.device, template()
    device.kernel_us["other"] = 50.0

    retry, cache = (
        RetryWhileRestarting(RetryPauses()),
        Cache(server.store, server.store.call, "fake-cpu"),
    )
    first = await choose_kernels(graph, program_of("d"), device, cache, retry)
    again = await choose_kernels(graph, program_of("e"), device, cache, retry)
    await server.stop()

    names = [operator.name for operator in graph.operators]
    assert first.by_unit == again.by_unit == dict.fromkeys(names[:2], "other")
    assert first.program == replace(program_of("d"), choices=(("ab", "other"),))
    assert again.program.choices == first.program.choices
    assert device.kernels_measured == {"usual": 2, "other": 2}  # an unusual choice is confirmed
