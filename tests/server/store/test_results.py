import errno
import os
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import URL, event

from braid.core.errors import ResourceExhausted, WorkerFault
from braid.core.measurement import StageLatency
from braid.core.schedule import ScheduleKey
from braid.server.fleet.store import FleetStore
from braid.server.store.database.opening import PAGE_CACHE_KIB
from braid.server.store.records import ModelStatus
from braid.server.store.store import Store
from tests.compiler.results import graph, schedule
from tests.server.store.databases import execute, reopened
from tests.server.store.registering import register


def test_keys_without_an_accepted_error_are_what_they_were_before_there_was_one() -> None:
    plain, accepting = (ScheduleKey("ab" * 32, "cpu", 1, accepted_error=e) for e in (None, 0.1))

    assert plain.id == "8cccba11fecb07e067f5c680"
    assert plain.id != accepting.id
    assert ScheduleKey(**accepting.to_json()) == accepting


def test_a_schedule_is_found_again_under_its_key_and_model(store: Store) -> None:
    for each in (schedule(4), schedule(1), schedule(4, latency_us=3.0)):
        store.put_schedule(each)

    store = reopened(store)

    assert store.find_schedule(schedule(4).key) == schedule(4, latency_us=3.0)
    assert [each.key.batch_size for each in store.schedules_of("ab" * 32)] == [1, 4]
    assert store.schedules_of("ab" * 32, "cpu-b") == []
    store.forget_schedule(schedule(4).key)
    assert store.find_schedule(schedule(4).key) is None
    store.close()


def test_a_schedule_keeps_its_graph_until_it_is_forgotten(store: Store) -> None:
    made, drawn = schedule(), graph("conv", "pool")
    store.put_schedule(made, drawn)
    store.put_schedule(schedule(latency_us=3.0))

    store = reopened(store)

    assert store.find_graph(made) == drawn
    store.forget_schedule(made.key)
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


def test_a_row_that_was_changed_counts_as_none(shared_database: URL, tmp_path: Path) -> None:
    store = FleetStore.open(tmp_path, database=shared_database)
    store.put_schedule(schedule())
    change = "UPDATE schedules SET schedule = replace(schedule, '5.0', '1.0')"
    execute(shared_database, change)

    assert store.find_schedule(schedule().key) is None
    assert store.schedules_of("ab" * 32) == []
    store.close()


def test_a_batch_of_latencies_takes_the_place_of_older_ones(store: Store) -> None:
    store.put_latencies("cpu-a", {"s1": StageLatency(10.0, 0.1, 5)})
    store.put_latencies("cpu-b", {"s1": StageLatency(99.0, 0.1, 5)})

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
            store.set_model_state("lenet", 1, ModelStatus.SERVING, "why" * number)

    with pytest.raises(ResourceExhausted, match=r"disk is full .*; free some space"):
        fill()

    event.remove(store._database.engine, "begin", no_more_pages)
    assert store.find_model("lenet", 1).state is ModelStatus.SERVING
    assert len(store.unfinished_jobs()) == 1


def test_measurements_that_a_full_disk_does_not_take_are_said_to_be_lost_and_no_other_is(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    measured = StageLatency(1.0, 0.1, 5)
    sqlite_store.put_latencies("cpu-a", {"s0": measured})

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(ResourceExhausted, match=r"disk is full .*; free some space"):
            sqlite_store.put_latencies("cpu-a", {"s1": measured})
        with pytest.raises(ResourceExhausted, match=r"disk is full .*; free some space"):
            sqlite_store.put_schedule(schedule())

    sqlite_store.put_latencies("cpu-a", {"s2": measured})
    assert sqlite_store.all_latencies("cpu-a") == {"s0": 1.0, "s2": 1.0}
    assert sqlite_store.find_schedule(schedule().key) is None


def test_a_database_that_grows_does_not_fill_memory_with_pages(sqlite_store: Store) -> None:
    [(size,)] = sqlite_store._database.read(
        lambda connection: connection.exec_driver_sql("PRAGMA cache_size").fetchall()
    )

    assert size == -PAGE_CACHE_KIB  # negative: KiB, not pages
