"""Schedules and measurements of a store."""

from __future__ import annotations

import pytest
import sqlalchemy
from sqlalchemy import event

from braid.core.errors import (
    ResourceExhausted,
    WorkerFault,
)
from braid.core.graph import Operator, OpGraph
from braid.core.measurement import StageLatency
from braid.core.plan import sequential_plan
from braid.core.schedule import Schedule, ScheduleKey, Stage
from braid.core.tensor import TensorType
from braid.server.store.database.opening import PAGE_CACHE_KIB
from braid.server.store.store import Store
from tests.server.store.databases import execute, reopened, url_of
from tests.server.store.registering import register

# Schedules and measurements.


def schedule(batch_size: int = 1, latency_us: float = 5.0) -> Schedule:
    key = ScheduleKey("ab" * 32, "cpu-a", batch_size)
    stage = Stage(((0,), (1,)), latency_us=latency_us)
    return Schedule(key, "ios", sequential_plan(2), (stage,), ("conv", "pool"))


def test_keys_without_an_accepted_error_are_what_they_were_before_there_was_one() -> None:
    plain, accepting = (ScheduleKey("ab" * 32, "cpu", 1, accepted_error=e) for e in (None, 0.1))

    assert plain.id == "8cccba11fecb07e067f5c680"
    assert plain.id != accepting.id
    assert ScheduleKey(**accepting.to_json()) == accepting


def test_a_schedule_is_found_again_under_its_key_and_model(store: Store) -> None:
    for each in (schedule(4), schedule(1), schedule(4, latency_us=3.0)):
        store.put_schedule(each)

    store = reopened(store)

    assert store.find_schedule(schedule(4).key.id) == schedule(4, latency_us=3.0)
    assert [each.key.batch_size for each in store.schedules_of("ab" * 32)] == [1, 4]
    assert store.schedules_of("ab" * 32, "cpu-b") == []
    store.forget_schedule(schedule(4).key.id)
    assert store.find_schedule(schedule(4).key.id) is None
    store.close()


def graph(*units: str) -> OpGraph:
    spec = TensorType("FP32", (1, 8))
    operators = tuple(Operator(unit, "relu", ("x",), (unit,)) for unit in units)
    return OpGraph("two", {"x": spec}, {"y": units[0]}, {}, operators, dict.fromkeys(units, spec))


def test_a_schedule_keeps_its_graph_until_it_is_forgotten(store: Store) -> None:
    made, drawn = schedule(), graph("conv", "pool")
    store.put_schedule(made, drawn)
    store.put_schedule(schedule(latency_us=3.0))

    store = reopened(store)

    assert store.find_graph(made) == drawn
    store.forget_schedule(made.key.id)
    assert store.find_graph(made) is None
    store.close()


def test_a_graph_of_other_units_than_the_schedule_counts_as_none(store: Store) -> None:
    store.put_schedule(schedule(), graph("conv", "add"))

    assert store.find_graph(schedule()) is None


def test_a_schedule_without_a_graph_is_drawn_from_none_and_takes_one(store: Store) -> None:
    store.put_schedule(schedule())

    assert store.find_graph(schedule()) is None
    store.put_graph(schedule(), graph("conv", "pool"))
    assert store.find_graph(schedule()) == graph("conv", "pool")


def test_a_schedule_changed_on_disk_counts_as_none(store: Store) -> None:
    store.put_schedule(schedule())
    store.close()
    execute(url_of(store), "UPDATE schedules SET schedule = replace(schedule, '5.0', '1.0')")

    store = Store.open(store.folder.root, database=url_of(store))

    assert store.find_schedule(schedule().key.id) is None
    assert store.schedules_of("ab" * 32) == []
    store.close()


def test_latencies_are_kept_by_device_and_signature(store: Store) -> None:
    store.put_latency("cpu-a", "s1", StageLatency(10.0, 0.1, 5))
    store.put_latency("cpu-a", "s1", StageLatency(12.0, 0.1, 5))
    store.put_latency("cpu-b", "s1", StageLatency(99.0, 0.1, 5))

    store = reopened(store)

    wanted = ["s1", *(f"none-{n}" for n in range(2000))]
    assert store.find_latencies("cpu-a", wanted) == {"s1": 12.0}
    store.close()


def test_a_batch_of_latencies_takes_the_place_of_older_ones(store: Store) -> None:
    store.put_latency("cpu-a", "s1", StageLatency(10.0, 0.1, 5))
    store.put_latency("cpu-b", "s1", StageLatency(99.0, 0.1, 5))

    store.put_latencies("cpu-a", {f"s{n}": StageLatency(20.0 + n, 0.1, 5) for n in (1, 2, 3)})
    store.put_latencies("cpu-a", {})

    store = reopened(store)
    assert store.all_latencies("cpu-a") == {"s1": 21.0, "s2": 22.0, "s3": 23.0}
    assert store.all_latencies("cpu-c") == {}
    store.close()


@pytest.mark.parametrize("latency_us", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_latency_is_never_stored(latency_us: float) -> None:
    with pytest.raises(WorkerFault, match="cannot be"):
        StageLatency(latency_us, 0.1, 5)


def test_a_full_disk_loses_nothing_and_says_so(sqlite_store: Store) -> None:
    store = sqlite_store
    register(store)

    @event.listens_for(store._database.engine, "begin")
    def no_more_pages(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")

    def fill() -> None:
        for number in range(10_000):
            store.put_latency("cpu-a" * 50, f"s{number}", StageLatency(1.0, 0.1, 5))

    with pytest.raises(ResourceExhausted, match=r"disk is full .*; free some space"):
        fill()

    event.remove(store._database.engine, "begin", no_more_pages)
    assert store.find_latencies("cpu-a" * 50, ["s0"]) == {"s0": 1.0}
    assert len(store.unfinished_jobs()) == 1


def test_a_database_that_grows_does_not_fill_memory_with_pages(sqlite_store: Store) -> None:
    [(size,)] = sqlite_store._database.read(
        lambda connection: connection.exec_driver_sql("PRAGMA cache_size").fetchall()
    )

    assert size == -PAGE_CACHE_KIB  # negative: KiB, not pages
