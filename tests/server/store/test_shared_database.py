"""A database that several servers share: at the same time, away, full, hanging."""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.waiting import Wait
from sqlalchemy import URL, Connection, text

from braid.core.errors import ResourceExhausted, StartupError, StoreUnavailable
from braid.core.measurement import StageLatency
from braid.server.fleet.store import FleetStore
from braid.server.rpc.status import status_code
from braid.server.store.database import database as transactions
from braid.server.store.database import postgresql
from braid.server.store.database.database import Database
from braid.server.store.database.failures import SharedWatch
from braid.server.store.database.postgresql import BoundedConnection, Limits, make_engine
from braid.server.store.quota import StoreLimits
from braid.server.store.records import JobStatus, ModelStatus
from tests.clock import until
from tests.server.store.databases import SharedDatabases, execute, exit_codes, full_disk, url_of
from tests.server.store.registering import end, receive, register


@pytest.fixture
def shared_store(shared_database: URL, tmp_path: Path) -> Iterator[FleetStore]:
    """A store with one measurement, of a microsecond."""
    store = FleetStore.open(tmp_path / "store", database=shared_database, node="here")
    store.put_latencies("cpu", {"s": StageLatency(1.0, 0.1, 5)})
    yield store
    store.close()


def patient(url: URL, limits: Limits) -> Database:
    """The database with other limits."""
    engine = make_engine(url, limits)
    readers = engine.execution_options(isolation_level="REPEATABLE READ")
    return Database(engine, readers, SharedWatch())


def add_latency(connection: Connection) -> None:
    """Add one to the latency of all measurements, which rests on what is read."""
    read = text("SELECT latency_us FROM measurements WHERE signature = 's'")
    now = connection.scalar(read)
    assert now is not None
    connection.execute(text("UPDATE measurements SET latency_us = :new"), {"new": now + 1.0})


def latency(store: FleetStore) -> float:
    return store.all_latencies("cpu")["s"]


@pytest.fixture
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions are run again for as long as a restart or other writers take here."""
    monkeypatch.setattr(transactions, "REPEAT_SECONDS", 120.0)


# At the same time.


def _register_ten(url: URL, root: Path, number: int) -> None:
    transactions.REPEAT_SECONDS = 120.0  # in a process of its own
    store = FleetStore.open(root, StoreLimits(max_uploads=100), url, str(number))
    for each in range(10):
        register(store, "lenet", f"model {number}.{each}".encode())
    store.close()


def test_forty_versions_of_one_name_that_four_servers_add_at_once_are_forty(
    shared_store: FleetStore, tmp_path: Path
) -> None:
    url = url_of(shared_store)

    assert exit_codes(_register_ten, [(url, tmp_path / str(n), n) for n in range(4)]) == [0] * 4

    assert [model.version for model in shared_store.models("lenet")] == list(range(1, 41))
    assert len({model.sha256 for model in shared_store.models("lenet")}) == 40
    assert shared_store.count_jobs()["QUEUED"] == 40


def test_the_same_bytes_sent_to_two_servers_at_once_are_one_version_and_one_job(
    shared_store: FleetStore, tmp_path: Path
) -> None:
    stores = [
        FleetStore.open(tmp_path / str(n), database=url_of(shared_store), node=str(n))
        for n in range(4)
    ]
    ready = threading.Barrier(4)
    made = []

    def send(store: FleetStore) -> None:
        ready.wait()
        made.append(register(store))

    threads = [threading.Thread(target=send, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {(each.model.version, each.job.id) for each in made} == {(1, made[0].job.id)}
    assert sorted(each.is_new_job for each in made) == [False, False, False, True]
    for store in stores:
        store.close()


@pytest.mark.usefixtures("_slow_machine")
def test_changes_that_rest_on_what_they_read_lose_nothing(shared_store: FleetStore) -> None:
    databases = [patient(url_of(shared_store), Limits()) for _ in range(4)]

    def add(database: Database) -> None:
        for _ in range(25):
            database.write(add_latency)

    threads = [threading.Thread(target=add, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert latency(shared_store) == 101.0
    for database in databases:
        database.close()


# Away.


def test_a_database_that_is_away_is_a_moment_s_trouble_and_needs_no_restart(
    shared_store: FleetStore, shared_databases: SharedDatabases
) -> None:
    made = register(shared_store)
    upload = receive(shared_store, b"other")
    shared_databases.server.stop()
    try:
        for _ in range(20):
            with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
                shared_store.models()
        assert status_code(caught.value) is grpc.StatusCode.UNAVAILABLE
        assert caught.value.retry_after_s > 0
        with pytest.raises(StoreUnavailable):
            shared_store.register("lenet", upload, made.model.options)
        with pytest.raises(StoreUnavailable):  # of the model; its end is kept
            end(shared_store, made, JobStatus.FAILED)
        assert shared_store.has_unstored_ends
    finally:
        shared_databases.server.start()

    until_answers(shared_store)
    shared_store.store_ends()

    assert shared_store.find_job(made.job.id).state is JobStatus.FAILED
    assert shared_store.find_model("lenet", 1).state is ModelStatus.FAILED
    assert not shared_store.has_unstored_ends


def until_answers(store: FleetStore) -> None:
    """Wait until a store tries to connect again."""

    def answers() -> bool:
        try:
            store.models()
        except StoreUnavailable:
            return False
        return True

    until(answers)


@pytest.mark.usefixtures("_slow_machine")
def test_a_restart_of_the_database_within_a_transaction_loses_and_doubles_nothing(
    shared_store: FleetStore, shared_databases: SharedDatabases
) -> None:
    tries = []

    def change(connection: Connection) -> None:
        add_latency(connection)
        tries.append(1)
        if len(tries) == 1:
            shared_databases.server.stop(signal.SIGQUIT)
            shared_databases.server.start()
            connection.execute(text("SELECT 1"))

    shared_store.database.write(change)

    assert len(tries) == 2
    assert latency(shared_store) == 2.0


def test_a_connection_lost_after_a_long_pause_is_made_again(
    shared_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPEAT_SECONDS", 0.0)
    tries = []

    def change(connection: Connection) -> None:
        add_latency(connection)
        tries.append(connection.scalar(text("SELECT pg_backend_pid()")))
        if len(tries) == 1:
            execute(url_of(shared_store), f"SELECT pg_terminate_backend({tries[0]})")
            connection.execute(text("SELECT 1"))

    shared_store.database.write(change)

    assert len(set(tries)) == 2
    assert latency(shared_store) == 2.0


def test_a_connection_lost_at_the_commit_is_not_tried_again(shared_store: FleetStore) -> None:
    tries = []

    def change(connection: Connection) -> None:
        add_latency(connection)
        tries.append(1)
        own = connection.scalar(text("SELECT pg_backend_pid()"))
        execute(url_of(shared_store), f"SELECT pg_terminate_backend({own})")

    with pytest.raises(StoreUnavailable):
        shared_store.database.write(change)

    until_answers(shared_store)
    assert len(tries) == 1
    assert latency(shared_store) == 1.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"port": 1}, r"cannot be used \(.*refused.*\); start it or check BRAID_DATABASE"),
        ({"password": "wrong"}, r"cannot be used \(.*password authentication failed.*\)"),
        ({"database": "absent"}, r"cannot be used \(.*\"absent\" does not exist.*\)"),
    ],
)
def test_a_database_that_cannot_be_used_stops_the_start_with_one_line(
    shared_database: URL, tmp_path: Path, change: dict[str, object], expected: str
) -> None:
    url = shared_database.set(**change)  # type: ignore[arg-type]

    with pytest.raises(StartupError, match=expected) as caught:
        FleetStore.open(tmp_path / "store", database=url)

    assert "\n" not in str(caught.value)
    assert str(url.password) not in str(caught.value)
    with pytest.raises(StartupError, match="cannot be used"):  # and the folder is free
        FleetStore.open(tmp_path / "store", database=url)


# Hanging.


@contextmanager
def locked(url: URL, table: str) -> Iterator[None]:
    database = patient(url, Limits(idle=60))
    with database.engine.begin() as connection:
        connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield
    database.close()


def within(seconds: float, function: Callable[[], object]) -> str:
    """The message of the StoreUnavailable that a call raises in time."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        function()
    assert time.monotonic() < began + seconds
    return str(caught.value)


def count(connection: Connection) -> int:
    return connection.scalar(text("SELECT count(*) FROM models")) or 0


def test_a_statement_that_waits_or_runs_too_long_is_ended(shared_store: FleetStore) -> None:
    hurried = patient(url_of(shared_store), Limits(statement=1, lock=1))

    with locked(url_of(shared_store), "models"):
        assert "timeout" in within(30, lambda: hurried.read(count))
    slow = text("SELECT pg_sleep(60)")
    assert "statement timeout" in within(30, lambda: hurried.read(lambda c: c.scalar(slow)))

    assert hurried.read(count) == 0
    hurried.close()


def test_a_database_whose_connections_are_all_in_use_is_a_moment_s_trouble(
    shared_store: FleetStore,
) -> None:
    database = shared_store.database
    database.engine.pool._timeout = 0.1  # type: ignore[attr-defined]
    connections = [database.engine.connect() for _ in range(5)]

    assert "in use" in within(30, shared_store.models)

    for connection in connections:
        connection.close()
    assert shared_store.models() == []


def test_a_server_that_stands_still_is_left(
    shared_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPEAT_SECONDS", 0.5)  # less than it is waited for
    hurried = patient(url_of(shared_store), Limits(answer=1.0))
    backends: list[int] = []

    def stand_still(connection: Connection) -> int:
        backends.append(connection.scalar(text("SELECT pg_backend_pid()")) or 0)
        os.kill(backends[-1], signal.SIGSTOP)
        return count(connection)

    try:
        assert "cannot be reached" in within(30, lambda: hurried.read(stand_still))
    finally:
        for backend in backends:
            os.kill(backend, signal.SIGCONT)
    assert len(backends) == 1
    hurried.close()


@pytest.mark.ci
def test_a_writer_that_stands_still_keeps_its_locks_only_for_a_while(
    shared_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPEAT_SECONDS", 0.5)  # it stands still for longer
    paused, others = patient(url_of(shared_store), Limits(idle=1)), threading.Event()
    tries = []

    def change(connection: Connection) -> None:
        add_latency(connection)
        tries.append(1)
        if len(tries) == 1:
            others.set()
            time.sleep(3)
            connection.execute(text("SELECT 1"))

    writer = threading.Thread(target=paused.write, args=(change,))
    writer.start()
    others.wait()
    shared_store.database.write(add_latency)
    writer.join()

    assert latency(shared_store) == 3.0
    paused.close()


def test_a_conflict_after_a_long_pause_is_tried_again(
    shared_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "REPEAT_SECONDS", 0.0)
    other, tries = patient(url_of(shared_store), Limits()), []

    def change(connection: Connection) -> None:
        tries.append(connection.scalar(text("SELECT latency_us FROM measurements")))
        if len(tries) == 1:
            other.write(add_latency)
        add_latency(connection)

    shared_store.database.write(change)

    assert tries == [1.0, 2.0]
    assert latency(shared_store) == 3.0
    other.close()


def test_a_server_is_not_left_because_this_process_stood_still(shared_store: FleetStore) -> None:
    def stand_still() -> PQGen[int]:
        yield Wait.R
        time.sleep(1)
        yield Wait.R
        return 7

    database = patient(url_of(shared_store), Limits(answer=0.5))
    with database.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, BoundedConnection)
        assert driver.wait(stand_still()) == 7
    database.close()


@pytest.mark.ci
def test_a_connection_is_not_given_up_because_this_process_stood_still(
    shared_store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StandsStill(selectors.DefaultSelector):
        left_s = 2.5  # psycopg's own limit is two seconds at least

        def select(self, timeout: float | None = None) -> Any:
            time.sleep(self.left_s)
            self.left_s = 0
            return super().select(timeout)

    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(waiting, "DefaultSelector", StandsStill)
    database = patient(url_of(shared_store), Limits())

    assert database.read(count) == 0
    database.close()


def test_a_server_that_takes_a_connection_and_says_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgresql, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = URL.create("postgresql+psycopg", host="127.0.0.1", port=silent.getsockname()[1])
        database = patient(url, Limits())
        assert "cannot be reached" in within(30, lambda: database.read(count))
        database.close()


# Full, and strange.


@pytest.mark.ci
def test_a_full_disk_of_the_database_is_a_resource_that_is_used_up(
    shared_databases: SharedDatabases, tmp_path: Path
) -> None:
    with full_disk(shared_databases) as (url, make_room):
        store = FleetStore.open(tmp_path / "store", database=url)
        register(store)

        def fill() -> None:
            for number in range(20_000):
                store.put_latencies("cpu" * 150, {f"s{number}": StageLatency(1.0, 0.1, 5)})

        with pytest.raises(ResourceExhausted, match="disk is full") as caught:
            fill()

        assert status_code(caught.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(store.unfinished_jobs()) == 1
        make_room()
        register(store, "another", b"another")
        assert [model.name for model in store.models()] == ["another", "lenet"]
        store.close()


def test_characters_that_databases_do_not_take_end_no_job_badly(store: FleetStore) -> None:
    made = register(store)

    store.set_model_state("lenet", 1, ModelStatus.SERVING, "a\0b")
    said = "no \0 operator \udc80"
    store.end_job(replace(made.job, state=JobStatus.UNSCHEDULED, message=said))

    assert store.find_job(made.job.id).message == "no \ufffd operator \ufffd"
