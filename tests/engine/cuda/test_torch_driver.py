"""The torch driver's captures, by the rules of torch 2.11 (tests/engine/cuda/torch_2_11.py)."""

from collections.abc import Iterator

import pytest
import torch

from braid.engine.cuda.driver.faults import CaptureFailed
from braid.engine.cuda.driver.interface import ORIGIN, Graph, Pool
from braid.engine.cuda.driver.torch_driver import TorchDriver
from braid.engine.cuda.graphs.prepare import capturing
from tests.engine.cuda.torch_2_11 import Refused, Torch211


@pytest.fixture(params=[False, True], ids=["2.11", "2.12"])
def torch_cuda(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Torch211]:
    with Torch211(ends_refused=request.param).installed(monkeypatch) as fake:
        yield fake


def capture(driver: TorchDriver, pool: Pool, fault: Exception | None = None) -> Graph:
    """A graph that forks to a second stream and joins it, or fails with its work loose."""
    streams = driver.stream(ORIGIN), driver.stream(1)
    with capturing(driver, streams, pool) as captured:
        for first, then in (streams, streams[::-1]):
            event = driver.event()
            driver.record(event, first)
            driver.wait(event, then)
            if fault:
                if isinstance(fault, Refused):
                    first.handle.capturing.is_invalid = True
                raise fault
    return captured[0]


def test_the_next_capture_into_a_pool_works_after_a_refused_one(torch_cuda: Torch211) -> None:
    driver = TorchDriver()
    pool = driver.pool()
    before = capture(driver, pool)

    for _ in range(2):
        with pytest.raises(CaptureFailed):
            capture(driver, pool, Refused("operation not permitted when stream is capturing"))
        assert not torch_cuda.counts_for_a_graph, "random numbers outside of a capture fail"
        driver.replay(capture(driver, pool), driver.stream(ORIGIN))

    driver.replay(before, driver.stream(ORIGIN))
    assert not torch_cuda.memory.to_device_pool, "nothing else is sent to the pool"


def test_refused_captures_hold_no_memory(torch_cuda: Torch211) -> None:
    driver = TorchDriver()
    pool = driver.pool()
    graph = capture(driver, pool)

    for _ in range(5):
        with pytest.raises(CaptureFailed):
            capture(driver, pool, Refused("stream is capturing"))

    torch_cuda.memory.empty_cache()
    assert len(torch_cuda.memory.users) == 2, "that of the graph, and that of the next one"
    driver.destroy(graph)
    torch_cuda.memory.empty_cache()
    assert len(torch_cuda.memory.users) == 1


def test_a_pool_that_cannot_be_made_leaves_no_capture_behind(
    torch_cuda: Torch211, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = TorchDriver()
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "graph_pool_handle", lambda: (1 / 0, 0))
        with pytest.raises(ZeroDivisionError):
            driver.pool()
    with monkeypatch.context() as patched:
        patched.setattr(torch_cuda.memory, "begin", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            driver.pool()

    capture(driver, driver.pool())


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_released_pool_gives_its_memory_back_even_after_failures(torch_cuda: Torch211) -> None:
    driver = TorchDriver()
    pool = driver.pool()
    graphs = [capture(driver, pool)]
    for fault in (Refused("stream is capturing"), torch.OutOfMemoryError("CUDA out of memory")):
        with pytest.raises(Exception, match=r"capture|memory"):
            capture(driver, pool, fault)
        graphs.append(capture(driver, pool))

    for graph in graphs:
        driver.destroy(graph)
    driver.release_pool(pool)

    assert not torch_cuda.memory.users


def test_no_kernel_runs_on_the_stream_that_captures_begin_on(torch_cuda: Torch211) -> None:
    """Else torch 2.12 to 2.14 give its cuBLAS workspace away with any graph captured there."""
    driver = TorchDriver()

    capture(driver, driver.pool())

    assert [s.launches for s in torch_cuda.streams if s.captures] == [0]
    assert torch_cuda.current is driver.stream(ORIGIN).handle


def test_pinned_memory_is_the_hosts_where_the_gpu_is_the_default_device(
    torch_cuda: Torch211,
) -> None:
    driver = TorchDriver()

    with torch.device("cuda"):
        assert driver.pinned((4,), torch.float32).is_cpu
