import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from braid.compiler.planner import MeasureStages, PlannerInterrupted
from braid.compiler.planner_messages import StageQuery
from braid.core.errors import (
    DamagedArtefact,
    DeviceOutOfMemory,
    InvalidArtefact,
    ModelImportError,
    WorkerDied,
    WorkerRestarting,
)
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Stage
from braid.engine.importer.host.launch import ImporterKilled
from braid.engine.link.messages import ComparePlans
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.registration import serve_again
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobStatus, ModelStatus
from tests.server.jobs.fakes import FakeDevice, Server
from tests.server.jobs.watching import notes_while_waiting, registered, until_ended


async def test_a_failed_import_fails_the_job_and_the_model_with_its_reason(server: Server) -> None:
    server.importer.error = ModelImportError("node 'n' is cyclic")

    job = await registered(server)

    assert (job.state, job.message) == (JobStatus.FAILED, "node 'n' is cyclic")
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelStatus.FAILED, "node 'n' is cyclic")
    assert not list(server.store.folder.uploads.iterdir())


async def test_one_failed_batch_size_leaves_the_others_scheduled_and_all_served(
    server: Server,
) -> None:
    server.device.fails_at = 4

    job = await registered(server, sizes=(1, 4, 8))

    assert job.state is JobStatus.UNSCHEDULED
    assert "batch size 4: cannot run four" in job.message
    assert sorted(size for _, _, size in server.models.plans) == [1, 8]
    assert server.store.find_model("lenet", 1).state is ModelStatus.SERVING


async def test_a_device_that_cannot_take_a_model_does_not_stop_the_others(server: Server) -> None:
    other = FakeDevice()
    other.name, other.device_key = "cuda:0", "fake-gpu"
    other.refusal = DeviceOutOfMemory("the GPU ran out of memory")
    server.devices.append(other)

    job = await registered(server)

    assert job.state is JobStatus.UNSCHEDULED
    assert "cuda:0 does not serve it: the GPU ran out of memory" in job.message
    assert server.models.on_devices == {"cpu"}
    assert server.device.measured
    assert not other.measured

    other.refusal = None
    await serve_again(server.store.find_model("lenet", 1), server.services, [other])
    assert server.models.on_devices == {"cpu", "cuda:0"}


async def test_a_model_lost_while_it_is_measured_fails_its_job(server: Server) -> None:
    def lose(_: Stage) -> None:
        raise DamagedArtefact("graph.json is missing")

    server.device.before_measuring = lose

    job = await registered(server, sizes=(1, 4))

    assert job.state is JobStatus.FAILED
    assert "graph.json is missing" in job.message


async def test_a_bug_tells_the_user_nothing_but_where_to_look(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.planner.error = RuntimeError("secret")

    job = await registered(server)

    assert job.state is JobStatus.UNSCHEDULED
    assert "internal error" in job.message
    assert "secret" not in job.message
    assert "secret" in caplog.text
    assert server.store.find_model("lenet", 1).state is ModelStatus.SERVING


async def test_a_worker_that_restarts_interrupts_nothing(server: Server) -> None:
    deaths = iter([WorkerRestarting("died"), WorkerRestarting("starting")])

    def die(_: Stage) -> None:
        if error := next(deaths, None):
            raise error

    server.device.before_measuring = die

    job = await registered(server)

    assert job.state is JobStatus.READY
    assert set(server.device.measured.values()) == {1}


async def test_a_planner_that_is_killed_is_started_again_and_the_job_says_so(
    server: Server,
) -> None:
    kills = iter(range(3))

    async def plan_or_die() -> None:
        if next(kills, None) is not None:
            raise PlannerInterrupted("the planner process was killed (SIGKILL)")

    server.planner.before_planning = plan_or_die

    said = notes_while_waiting(server)

    job = await registered(server)

    assert job.state is JobStatus.READY
    assert server.slept_s == [0.25, 0.5, 1.0]
    reason = "the planner process was killed (SIGKILL)"
    times = ("2nd", "3rd", "4th")
    assert said == [f"batch size 1: trying again ({each} try): {reason}" for each in times]
    assert set(server.device.measured.values()) == {1}, "what was measured is known"


async def test_a_runtime_of_which_the_worker_dies_is_left_out(server: Server) -> None:
    server.device.runtimes = (ONNXRUNTIME, OPENVINO)
    ask, deaths = server.device.ask, 0

    async def ask_or_die(request: Any, on_progress: Callable[[float], None] | None = None) -> Any:
        nonlocal deaths
        if isinstance(request, ComparePlans):
            runtimes = {name for field in request.fields for name in field.runtimes}
            if OPENVINO in runtimes:
                deaths += 1
                raise WorkerDied("the device worker died while it had this request; try again")
        return await ask(request, on_progress)

    server.device.ask = ask_or_die  # type: ignore[method-assign]

    job = await registered(server, planner=PlannerSettings("portfolio"))

    assert job.state is JobStatus.READY
    assert deaths == 3
    (schedule,) = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    assert schedule.provenance.left_out == {OPENVINO: "the worker died 3 times, at last with it"}
    assert ONNXRUNTIME in [contender.name for contender in schedule.provenance.candidates]


@pytest.mark.parametrize(("kills", "state"), [(7, JobStatus.READY), (8, JobStatus.FAILED)])
async def test_an_importer_that_is_killed_is_tried_again_for_a_while(
    server: Server, kills: int, state: JobStatus
) -> None:
    left = iter(range(kills))

    async def import_or_die(*args: Any, **options: Any) -> None:
        if next(left, None) is not None:
            raise ImporterKilled("the importer was killed (SIGKILL) by another process")
        await server.importer(*args, **options)

    await server.runner.stop()
    server.services = replace(server.services, import_model=import_or_die)
    server.runner = JobRunner(server.services)
    await server.runner.start()
    said = notes_while_waiting(server)

    job = await registered(server)

    killed = "the importer was killed (SIGKILL) by another process"
    assert said[0] == f"trying again (2nd try): {killed}"
    assert len(said) == 7
    assert job.state is state
    assert job.message == (f"{killed} (tried 8 times)" if kills == 8 else "")


async def test_what_counts_is_tries_without_progress(server: Server) -> None:
    learned = 0

    def count(_: Stage) -> None:
        nonlocal learned
        learned += 1

    async def ask_for_one_more(
        measure: MeasureStages, queries: Sequence[StageQuery]
    ) -> list[float]:
        known = learned
        latencies = [*await measure(queries[: known + 1])]
        if known + 1 < len(queries):
            raise PlannerInterrupted("the planner process was killed (SIGKILL)")
        return latencies

    server.device.before_measuring = count
    server.planner.asks = ask_for_one_more

    job = await registered(server)

    assert job.state is JobStatus.READY
    assert len(server.slept_s) > len(server.services.retry_pauses.pauses_s)
    assert set(server.slept_s) == {0.25}, "the pauses never grow"


async def test_a_planner_that_never_gets_on_leaves_the_model_serving(server: Server) -> None:
    server.planner.error = PlannerInterrupted("the planner process was killed (SIGKILL)")

    job = await registered(server)

    assert job.state is JobStatus.UNSCHEDULED
    assert job.message.endswith(
        "batch size 1: the planner process was killed (SIGKILL) (tried 4 times)"
    )
    assert server.planner.calls == 4
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelStatus.SERVING, job.message)


async def test_a_model_that_is_not_scheduled_is_by_registering_it_again(server: Server) -> None:
    server.planner.error = PlannerInterrupted("killed")
    unscheduled = await registered(server)
    server.planner.error = None

    job = await registered(server)

    assert (job.state, job.version) == (JobStatus.READY, unscheduled.version)
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelStatus.SERVING, "")
    assert server.importer.imports == 1


async def test_a_start_schedules_again_what_is_not_at_longer_and_longer_intervals(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    server.planner.error = PlannerInterrupted("killed")
    await registered(server)
    attempts = []
    for wait_s in (0.0, 1.0, 300.0, 300.0, 1200.0):
        now += wait_s
        await server.stop()
        server = Server(server.store.folder.root)
        server.planner.error = PlannerInterrupted("killed")
        before = len(server.store.jobs())
        await server.runner.start()
        newest = (await server.runner.list())[0]
        assert (await until_ended(server, newest.id))[-1].state is JobStatus.UNSCHEDULED
        attempts.append(len(server.store.jobs()) - before)
    await server.stop()

    assert attempts == [1, 0, 1, 0, 1]


async def test_a_cached_schedule_that_does_not_fit_is_made_again(server: Server) -> None:
    await registered(server)
    server.models.swap_error = InvalidArtefact("the plan launches 4 of 5 units")

    job = await registered(server, name="other")

    assert job.state is JobStatus.READY
    assert server.planner.calls == 2
    assert ("other", 1, 1) in server.models.plans
