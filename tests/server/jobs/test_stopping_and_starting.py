"""Jobs when a server stops, dies or starts again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from braid.core.errors import Draining
from braid.server.jobs.registration import serve_again
from braid.server.store.records import JobStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import HOLDS, reach, registered, times_measured, until_ended


async def test_a_stop_leaves_jobs_unfinished_and_a_start_finishes_them(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = [await server.register(name, name.encode()) for name in "abc"]
    await reach(server, made[0].job.id, JobStatus.PROFILING)
    watcher = server.runner.watch(made[0].job.id)
    await anext(watcher)
    before = await server.runner.find(made[0].job.id)

    again = await server.restarted()

    with pytest.raises(Draining, match="goes on after its restart"):
        _ = [_ async for _ in watcher]
    ended = [(await until_ended(again, each.job.id)) for each in made]
    assert [jobs[-1].state for jobs in ended] == [JobStatus.READY] * 3
    assert ended[0][0].progress >= 0.1
    assert before.progress <= ended[0][-1].progress
    # In the order in which their imports end, which go on side by side.
    assert sorted(again.device.loads) == sorted(each.model.sha256 for each in made)
    await again.stop()
    server.store = again.store


async def test_a_stopping_server_takes_no_registration(server: Server) -> None:
    await server.runner.stop()

    with pytest.raises(Draining):
        await server.register()
    assert not list(server.store.folder.uploads.iterdir())


async def test_a_job_whose_model_is_gone_is_cancelled_at_the_next_start(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    await reach(server, made.job.id, JobStatus.PROFILING)
    server.store.delete_model("lenet", 1)

    again = await server.restarted()

    job = await again.runner.find(made.job.id)
    assert (job.state, job.message) == (JobStatus.CANCELLED, "the model was deleted")
    await again.stop()


async def test_after_a_restart_a_model_serves_its_schedules_and_measures_nothing(
    server: Server,
) -> None:
    await registered(server, sizes=(1, 4))

    again = await server.restarted()
    await serve_again(again.store.find_model("lenet", 1), again.services)

    assert again.models.plans == server.models.plans
    assert (again.device.measured.total(), again.importer.imports) == (0, 0)
    assert again.device.wakes == 0
    assert again.observer.chosen == [(1, True), (4, True)]
    await again.stop()


async def test_a_model_that_was_not_restored_is_served_by_registering_it_again(
    server: Server,
) -> None:
    first = await registered(server)
    server.models.serving.clear()
    server.models.not_restored.add("lenet")

    again = await registered(server)

    assert (again.state, again.version) == (JobStatus.READY, 1)
    assert again.id != first.id
    assert server.models.serving == {("lenet", 1)}
    assert (server.importer.imports, server.planner.calls) == (1, 1)


async def test_a_start_on_another_device_schedules_anew(server: Server) -> None:
    job = await registered(server)
    await server.stop()
    again = Server(server.store.folder.root)
    again.device.device_key = "more-threads"

    await again.runner.start()

    newest, old = await again.runner.list()
    assert old == job
    assert (await until_ended(again, newest.id))[-1].state is JobStatus.READY
    assert again.device.measured.total() == server.device.measured.total()
    await again.stop()


async def test_watchers_do_not_hold_up_a_shutdown(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    watcher = asyncio.create_task(until_ended(server, made.job.id))
    await reach(server, made.job.id, JobStatus.PROFILING)

    server.runner.release_watchers()

    with pytest.raises(Draining, match="goes on after its restart"):
        await asyncio.wait_for(watcher, 120)
    assert not (await server.runner.find(made.job.id)).state.has_ended


async def test_a_server_of_its_own_asks_for_no_lease_and_lists_no_nodes(server: Server) -> None:
    statements: list[str] = []

    def note(*args: Any) -> None:
        statements.append(args[2])

    event.listen(server.store.database.engine, "before_cursor_execute", note)

    await registered(server, sizes=(1, 4))
    again = await server.restarted()

    assert statements
    assert not [each for each in statements if "leases" in each or "nodes" in each]
    await again.stop()
    server.store = again.store


@pytest.mark.parametrize("state", HOLDS)
async def test_a_killed_job_goes_on_where_it_was_and_measures_nothing_twice(
    tmp_path: Path, state: JobStatus
) -> None:
    killed = Server(tmp_path)
    await killed.runner.start()
    HOLDS[state](killed)
    made = await killed.register(sizes=(1, 4))
    await reach(killed, made.job.id, state)
    await asyncio.sleep(0.2)  # until the job stands where it is held
    killed.store.folder.close()  # as the kernel does

    server = Server(tmp_path)
    await server.runner.start()
    *_, job = await until_ended(server, made.job.id)

    assert job.state is JobStatus.READY
    assert not list(server.store.folder.uploads.iterdir())
    assert times_measured(killed, server) == {1}
    assert sorted(size for _, _, size in server.models.plans) == [1, 4]
    await server.stop()
    await killed.stop()
