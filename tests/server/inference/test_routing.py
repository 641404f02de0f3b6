from dataclasses import dataclass
from typing import Any

import pytest

from braid.core.errors import ModelQuarantined
from braid.server.inference.batching.batcher import Batcher
from braid.server.inference.requests import CheckedRequest
from braid.server.inference.routing import QueuedReplica, Replicas
from braid.server.inference.strikes import STRIKES
from braid.server.store.serving_config import BatchPolicy
from tests.server.inference.batching import ROW, Bench, FakeModel

MS = 1e-3


@dataclass
class FakeDevice:
    name: str
    answers: bool = True


class Host:
    """Two devices with their queues on one clock, and a model on both."""

    def __init__(self, first: dict[int, float], second: dict[int, float]) -> None:
        self.benches = {"cpu": Bench(first), "cuda:0": Bench(second)}
        clock = self.benches["cpu"].clock
        for bench in self.benches.values():
            bench.clock = bench.device._clock = clock
            bench.batcher = Batcher(bench.device, clock)
        self.replicas = Replicas()
        for name, bench in self.benches.items():
            model: Any = bench.model
            model.device = FakeDevice(name)
            self.replicas.add(QueuedReplica(model, bench.batcher))

    def choice(self, rows: int = 1) -> str:
        request = CheckedRequest(ROW, rows, {"x": b"\0\0\0\0" * rows}, ("y",), 5)
        return self.replicas.choose(request).replica.device.name


async def test_the_faster_device_takes_a_request_as_long_as_it_has_nothing_to_do() -> None:
    assert Host({1: 9 * MS}, {1: 2 * MS}).choice() == "cuda:0"
    assert Host({1: 1 * MS}, {1: 2 * MS}).choice() == "cpu"


async def test_the_slower_device_helps_once_the_faster_one_has_a_queue() -> None:
    host = Host({1: 9 * MS}, {1: 2 * MS})

    sent = [host.benches["cuda:0"].send() for _ in range(5)]
    await host.benches["cpu"].clock.advance(0)

    assert host.choice() == "cpu", "five requests of 2 ms wait, one of 9 ms is done before them"
    await host.benches["cpu"].clock.advance(1.0)
    assert all(each.done() for each in sent)
    assert host.choice() == "cuda:0"


async def test_strikes_on_one_device_count_on_all() -> None:
    host = Host({1: 1 * MS}, {1: 1 * MS})
    strikes = host.benches["cpu"].model.strikes
    assert [strikes.add() for _ in range(STRIKES)][-1]

    with pytest.raises(ModelQuarantined):
        await host.benches["cuda:0"].send()


async def test_a_full_queue_is_passed_by_however_fast_its_device_is() -> None:
    host = Host({1: 99 * MS}, {1: 0.1 * MS})
    fast = host.benches["cuda:0"]
    fast.model.policy = BatchPolicy(max_requests=2)

    for _ in range(4):  # two of them on their way
        fast.send()
    await fast.clock.advance(0)

    assert host.choice() == "cpu"


async def test_batch_sizes_count() -> None:
    host = Host({1: 2 * MS, 8: 3 * MS}, {1: 1 * MS, 8: 8 * MS})

    assert host.choice(rows=1) == "cuda:0"
    assert host.choice(rows=8) == "cpu"


async def test_other_models_on_a_device_take_their_share_of_it() -> None:
    host = Host({1: 3 * MS}, {1: 2 * MS})
    busy = host.benches["cuda:0"]

    for _ in range(3):
        busy.send(model=FakeModel({1: 0.1 * MS}))
    await busy.clock.advance(0)

    assert host.choice() == "cpu"


async def test_a_device_that_is_down_takes_nothing_unless_all_are() -> None:
    host = Host({1: 9 * MS}, {1: 2 * MS})
    devices: list[Any] = [queued.replica.device for queued in host.replicas.all]

    devices[1].answers = False
    assert host.choice() == "cpu"
    devices[0].answers = False
    assert host.choice() == "cpu", "which refuses, and says that it restarts"
