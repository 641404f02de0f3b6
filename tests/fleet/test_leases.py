"""Jobs of nodes that share a PostgreSQL: each has one owner, and ends once, whoever dies."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from braid.core.errors import JobNotFound, PreconditionFailed, StoreUnavailable
from braid.core.measurement import StageLatency
from braid.server.store.database import failures
from braid.server.store.records import JobStatus, ModelStatus, Registration
from tests.clock import until_true
from tests.fleet.nodes import Node
from tests.fleet.postgres import Postgres
from tests.server.fleet.files.nodes import value
from tests.server.jobs.fakes import a_moment
from tests.server.jobs.watching import (
    HOLDS,
    holds_profiling,
    reach,
    registered,
    times_measured,
    until_ended,
)

pytestmark = pytest.mark.fleet

MakeNode = Callable[..., Node]


@pytest.fixture
async def make_node(tmp_path: Path, postgres_server: Postgres) -> AsyncIterator[MakeNode]:
    url = postgres_server.create(f"jobs-{secrets.token_hex(4)}")
    made: list[Node] = []

    def make(name: str, **options: object) -> Node:
        made.append(Node(tmp_path, name, url, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for node in made:
        if node.is_dead:
            node.store.close()
        elif not node.is_over:
            await node.stop()


async def settled(*nodes: Node) -> None:
    """Wait until nodes would take over what others do not renew."""
    await until_true(lambda: all(node.leases.takes_expired for node in nodes))


async def profiling(node: Node) -> Registration:
    """Register a model whose job stands where it measures."""
    holds_profiling(node)
    made = await node.register()
    await reach(node, made.job.id, JobStatus.PROFILING)
    return made


@pytest.mark.parametrize("state", HOLDS)
async def test_a_job_of_a_node_that_died_ends_on_another_from_what_was_measured(
    make_node: MakeNode, state: JobStatus
) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    await settled(two)
    HOLDS[state](one)
    made = await one.register(sizes=(1, 4))
    await reach(two, made.job.id, state)
    watcher = asyncio.create_task(until_ended(two, made.job.id))
    await asyncio.sleep(0.2)  # until the node stands where it is held

    await one.die()

    seen = await watcher
    assert seen[-1].state is JobStatus.READY
    assert [job.progress for job in seen] == sorted(job.progress for job in seen)
    assert value(two.counts.takeovers) == 1
    assert times_measured(one, two) == {1}, "nothing is measured twice"


async def test_late_writes_of_a_node_that_comes_back_are_refused(make_node: MakeNode) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    await settled(two)
    made = await profiling(one)
    await asyncio.sleep(0.2)
    await one.leases.fall_silent()  # and does not notice: it stands still

    [*_, end] = await until_ended(two, made.job.id)
    rows = two.store.database.read(lambda c: c.exec_driver_sql("select * from measurements").all())
    assert one.device.gate is not None
    one.device.gate.set()
    await until_true(lambda: value(one.counts.refused) > 0)

    assert end.state is JobStatus.READY
    assert one.runner.is_working_on("lenet", 1) is False
    assert await one.runner.find(made.job.id) == await two.runner.find(made.job.id) == end
    again = two.store.database.read(lambda c: c.exec_driver_sql("select * from measurements").all())
    assert again == rows


async def test_a_node_without_the_database_stops_and_goes_on_with_the_same_fence(
    make_node: MakeNode, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goes on while the store still rests: its tries do not count until the database answers."""
    monkeypatch.setattr(failures, "REST_SECONDS", 3.0)
    one, two = await make_node("one").start(), await make_node("two").start()
    await settled(one, two)
    made = await profiling(one)
    await asyncio.sleep(0.2)

    postgres_server.stop()
    await until_true(one.is_suspended)
    with pytest.raises(StoreUnavailable):
        await two.runner.find(made.job.id)
    one.device.gate, one.device.before_measuring = None, lambda _: None
    postgres_server.start()

    [*_, end] = await until_ended(one, made.job.id)
    assert end.state is JobStatus.READY
    assert (value(two.counts.takeovers), value(one.counts.lost), value(one.counts.refused)) == (
        0,
        0,
        0,
    )
    assert times_measured(one, two) == {1}


async def test_an_artefact_that_was_swept_before_its_model_serves_is_put_again(
    make_node: MakeNode,
) -> None:
    one = await make_node("one").start()

    async def sweep() -> None:
        one.device.before_loading = a_moment
        with one.store.database.engine.begin() as connection:
            connection.exec_driver_sql("delete from objects where key like 'artefacts/%%'")

    one.device.before_loading = sweep
    made = await one.register()

    [*_, end] = await until_ended(one, made.job.id)

    assert end.state is JobStatus.READY
    assert one.seen.puts.count("artefacts") == 2
    assert one.store.find_objects(f"artefacts/{made.model.sha256}")


async def test_a_job_is_cancelled_through_any_node(make_node: MakeNode) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    made = await profiling(one)
    watcher = asyncio.create_task(until_ended(one, made.job.id))

    job = await two.runner.cancel(made.job.id)

    assert job.state is JobStatus.CANCELLED
    assert (await watcher)[-1].state is JobStatus.CANCELLED
    with pytest.raises(JobNotFound):
        await two.runner.cancel("unknown")
    one.device.gate, one.device.before_measuring = None, lambda _: None
    ready = await registered(one, "other", b"other bytes")
    with pytest.raises(PreconditionFailed, match="has ended already: READY"):
        await two.runner.cancel(ready.id)


async def test_a_job_whose_owner_died_is_cancelled_by_any_node(make_node: MakeNode) -> None:
    one = await make_node("one", lease_seconds=60).start()
    two = await make_node("two", device_key="another type").start()
    made = await profiling(one)
    await one.die()

    cancelling = asyncio.create_task(two.runner.cancel(made.job.id))
    await until_true(lambda: any(entry.cancel_requested for entry in two.store.jobs_to_claim()))
    two.make_due()  # the lease is over only now, or a look of the other node might win
    job = await cancelling

    assert job.state is JobStatus.CANCELLED
    assert two.device.measured.total() == 0


async def test_jobs_of_a_node_that_stops_go_on_at_once(make_node: MakeNode) -> None:
    one = await make_node("one", lease_seconds=60).start()
    two = await make_node("two", lease_seconds=60).start()
    made = await profiling(one)

    await one.stop()
    await two.registry.claim()

    assert (await until_ended(two, made.job.id))[-1].state is JobStatus.READY


async def test_a_job_goes_to_another_type_only_if_no_node_of_its_type_lives(
    make_node: MakeNode,
) -> None:
    one, twin = await make_node("one").start(), await make_node("twin").start()
    other = await make_node("other", device_key="another type").start()
    await settled(twin, other)
    holds_profiling(twin)
    made = await profiling(one)

    await one.die()
    await until_true(lambda: value(twin.counts.takeovers) == 1)
    assert value(other.counts.takeovers) == 0
    await twin.die()

    assert (await until_ended(other, made.job.id))[-1].state is JobStatus.READY
    assert value(other.counts.takeovers) == 1


async def test_nodes_of_a_type_that_no_node_has_profiled_make_one_job(make_node: MakeNode) -> None:
    one = await make_node("one").start()
    ready = await registered(one, sizes=(1, 4))
    others = [await make_node(name, device_key="another type").start() for name in "ab"]

    await asyncio.gather(*(node.registry.add_missing_jobs() for node in others))

    jobs = [(await until_ended(one, job.id))[-1] for job in await one.runner.list()]
    assert [job.state for job in jobs] == [JobStatus.READY] * 2
    assert jobs[1] == ready
    measured = [node.device.measured for node in others]
    assert sorted(bool(each) for each in measured) == [False, True]


async def test_deleting_a_model_ends_its_job_on_another_node(make_node: MakeNode) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    made = await profiling(one)

    await two.runner.cancel_model("lenet", 1)
    two.store.delete_model("lenet", 1)

    assert (await two.runner.find(made.job.id)).state is JobStatus.CANCELLED
    assert not one.runner.is_working_on("lenet", 1)


async def test_a_key_that_fails_is_tried_again_by_one_node_and_not_at_once(
    make_node: MakeNode,
) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    one.device.fails_at = two.device.fails_at = 4
    job = await registered(one, sizes=(1, 4))
    assert job.state is JobStatus.UNSCHEDULED

    for node in (one, two):
        await node.registry.add_missing_jobs()
    assert len(await one.runner.list()) == 1, "it is not due"
    for tries in range(1, 8):
        one.make_due()
        await asyncio.gather(*(node.registry.add_missing_jobs() for node in (one, two)))
        newest, *_ = jobs = await one.runner.list()
        await until_ended(two, newest.id)
        assert len(jobs) == 1 + min(tries, 5)


async def test_measurements_of_a_node_whose_clock_is_ahead_are_forgotten_too(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    await registered(one)
    [schedule] = two.store.schedules_of(two.store.find_model("lenet", 1).sha256)
    real = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: real() + 3600)
        one.store.put_latencies("fake-cpu", {"a stage": StageLatency(1.0, 0.0, 1)})
    two.store.put_schedule(schedule)

    job = await two.runner.schedule_again("lenet", 1)

    assert (await until_ended(one, job.id))[-1].state is JobStatus.READY
    assert "a stage" not in two.store.all_latencies("fake-cpu")


async def test_a_deletion_that_a_node_began_is_finished_by_another(make_node: MakeNode) -> None:
    one, two = await make_node("one").start(), await make_node("two").start()
    await settled(two)
    await registered(one)

    async with one.runner.deleting("lenet", 1):
        one.store.set_model_state("lenet", 1, ModelStatus.DRAINING)
        await two.registry.finish_deletions()
        assert two.store.models(), "its node lives"
        await one.die()

    await until_true(lambda: not two.store.models())


async def test_a_node_stops_while_the_database_is_away(
    make_node: MakeNode, postgres_server: Postgres
) -> None:
    one = await make_node("one", lease_seconds=60).start()
    stopped = asyncio.Event()

    async def stop_database() -> None:
        await asyncio.to_thread(postgres_server.stop)
        stopped.set()

    one.device.before_comparing = stop_database
    made = await one.register()
    await stopped.wait()
    await asyncio.sleep(0.5)  # for the job to find that its schedule cannot be stored

    async with asyncio.timeout(20):
        await one.stop()
    await asyncio.to_thread(postgres_server.start)

    two = await make_node("two").start()
    assert not (await two.runner.find(made.job.id)).state.has_ended
