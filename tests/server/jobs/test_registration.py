"""Registration jobs over fakes and a real store."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from braid.core.errors import (
    DamagedArtefact,
    DeviceOutOfMemory,
    Draining,
    InvalidArtefact,
    InvalidRequest,
    JobNotFound,
    ModelImportError,
    PreconditionFailed,
    WorkerRestarting,
)
from braid.core.measurement import Speed
from braid.core.schedule import Stage
from braid.engine.importer.host.launch import ImporterKilled
from braid.scheduler.options import PlannerOptions
from braid.server.jobs.interfaces import MeasureStages, Showing, StageQuery
from braid.server.jobs.planner.driver import PlannerInterrupted
from braid.server.jobs.registration import serve_again
from braid.server.store.records import Job, JobState, ModelState
from tests.server.jobs.fakes import FakeDevice, Server, template


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "store")
    await server.runner.start()
    yield server
    await server.stop()


async def until_ended(server: Server, job_id: str) -> list[Job]:
    async with asyncio.timeout(20):
        return [job async for job in server.runner.watch(job_id)]


async def registered(server: Server, *args: object, **options: object) -> Job:
    made = await server.register(*args, **options)  # type: ignore[arg-type]
    return (await until_ended(server, made.job.id))[-1]


async def reach(server: Server, job_id: str, state: JobState) -> None:
    async with asyncio.timeout(20):
        async for job in server.runner.watch(job_id):
            if job.state is state:
                return
    raise AssertionError(f"the job ended without being {state}")


def notes_while_waiting(server: Server) -> list[str]:
    """What the newest job says each time that it waits before it tries again."""
    said: list[str] = []

    async def note() -> None:
        (job, *_) = await server.runner.list()
        said.append(job.detail)

    server.sleeping = note
    return said


# The whole way.


async def test_a_registration_ends_with_a_verified_schedule_for_each_batch_size(
    server: Server,
) -> None:
    made = await server.register(sizes=(1, 4))
    seen = await until_ended(server, made.job.id)

    assert seen[-1].state is JobState.READY
    assert seen[-1].message == ""
    assert sorted(server.models.plans) == [("lenet", 1, 1), ("lenet", 1, 4)]
    schedule = server.models.plans["lenet", 1, 4]
    assert [stage.groups for stage in schedule.stages] == [((0,),), ((1,), (2,)), ((3,),)]
    assert schedule.unit_names == ("a", "b", "c", "d")
    assert schedule.provenance.promoted
    assert schedule.provenance.predicted_us == 4 * 30.0
    assert schedule.speed == Speed(1.11, 1.11, 1.11)
    assert schedule.provenance.stages_measured > 0
    assert schedule.provenance.software == {"torch": "fake"}
    assert schedule.provenance.unit_us == dict.fromkeys("abcd", 4 * 10.0)
    assert server.store.find_model("lenet", 1).state is ModelState.SERVING
    assert not list(server.store.folder.uploads.iterdir())


async def test_progress_never_goes_back_and_counts_the_measurements(server: Server) -> None:
    server.device.pause_s = 0.025

    made = await server.register(sizes=(1, 4))
    seen = await until_ended(server, made.job.id)

    progress = [job.progress for job in seen]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    profiling = [job for job in seen if job.state is JobState.PROFILING]
    assert [job.done for job in profiling][:3] == [0, 1, 2]
    assert all(job.total == profiling[0].total for job in profiling)
    assert all(job.eta_seconds > 0 for job in profiling[1:])
    assert profiling[1].eta_seconds > profiling[-1].eta_seconds
    states = [job.state.value for job in seen]
    wanted = ["IMPORTING", "PROFILING", "SCHEDULING", "VERIFYING", "READY"]
    assert [state for state in dict.fromkeys(states) if state != "QUEUED"] == wanted


async def test_the_model_serves_sequentially_before_anything_is_measured(server: Server) -> None:
    served_at_first_measurement = []
    server.device.before_measuring = lambda _: served_at_first_measurement.append(
        ("lenet", 1) in server.models.serving
    )

    await registered(server)

    assert set(served_at_first_measurement) == {True}


async def test_a_model_without_a_batch_has_one_schedule(server: Server) -> None:
    server.importer.graph, server.importer.batched = template(batch=1), False

    await registered(server, sizes=(1, 4, 8))

    assert list(server.models.plans) == [("lenet", 1, 1)]


async def test_open_extents_are_part_of_the_key(server: Server) -> None:
    server.importer.graph = template(extent="width")

    await registered(server, shapes={"x": (1, 320)})
    await registered(server, shapes={"x": (1, 64)})

    keys = {schedule.key.shapes for schedule in server.models.plans.values()}
    assert keys == {"width=320", "width=64"}


# Twice is once.


async def test_the_same_registration_again_is_answered_at_once(server: Server) -> None:
    first = await registered(server)

    again = await server.register()

    assert (again.job.id, again.job.state, again.is_new_job) == (first.id, JobState.READY, False)


async def test_the_same_bytes_under_another_name_measure_and_import_nothing(server: Server) -> None:
    await registered(server, sizes=(1, 4))
    measured, compared = server.device.measured.total(), len(server.device.contests)

    job = await registered(server, name="other", sizes=(1, 4))

    assert job.state is JobState.READY
    assert (server.device.measured.total(), len(server.device.contests)) == (measured, compared)
    assert (server.importer.imports, server.planner.calls) == (1, 2)
    assert server.device.wakes == 1, "what measures is started while the model is imported"
    assert ("other", 1, 4) in server.models.plans
    assert server.observer.looked_up == {False: 2, True: 2}


async def test_equal_stages_of_another_model_are_not_measured_again(server: Server) -> None:
    await registered(server)
    measured = server.device.measured.total()

    await registered(server, name="other", content=b"other bytes, same graph")

    assert server.device.measured.total() == measured
    schedule = server.models.plans["other", 1, 1]
    assert (schedule.provenance.stages_measured, schedule.provenance.stages_reused) == (0, measured)


async def test_another_device_is_measured_anew(server: Server) -> None:
    await registered(server)
    measured = server.device.measured.total()
    server.device.device_key = "another-cpu"

    job = await registered(server)

    assert job.state is JobState.READY
    assert server.device.measured.total() == 2 * measured


# What goes wrong.


async def test_a_failed_import_fails_the_job_and_the_model_with_its_reason(server: Server) -> None:
    server.importer.error = ModelImportError("node 'n' is cyclic")

    job = await registered(server)

    assert (job.state, job.message) == (JobState.FAILED, "node 'n' is cyclic")
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelState.FAILED, "node 'n' is cyclic")
    assert not list(server.store.folder.uploads.iterdir())


async def test_registering_again_after_a_failed_import_tries_again(server: Server) -> None:
    server.importer.error = ModelImportError("out of memory")
    await registered(server)
    server.importer.error = None

    job = await registered(server)

    assert (job.state, job.version) == (JobState.READY, 1)
    assert server.models.known["lenet", 1].state is ModelState.SERVING


async def test_one_failed_batch_size_leaves_the_others_scheduled_and_all_served(
    server: Server,
) -> None:
    server.device.fails_at = 4

    job = await registered(server, sizes=(1, 4, 8))

    assert job.state is JobState.UNSCHEDULED
    assert "batch size 4: cannot run four" in job.message
    assert sorted(size for _, _, size in server.models.plans) == [1, 8]
    assert server.store.find_model("lenet", 1).state is ModelState.SERVING


async def test_a_device_that_cannot_take_a_model_does_not_stop_the_others(server: Server) -> None:
    other = FakeDevice()
    other.name, other.device_key = "cuda:0", "fake-gpu"
    other.refusal = DeviceOutOfMemory("the GPU ran out of memory")
    server.devices.append(other)

    job = await registered(server)

    assert job.state is JobState.UNSCHEDULED
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

    assert job.state is JobState.FAILED
    assert "graph.json is missing" in job.message


async def test_a_bug_tells_the_user_nothing_but_where_to_look(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.planner.error = RuntimeError("secret")

    job = await registered(server)

    assert job.state is JobState.UNSCHEDULED
    assert "internal error" in job.message
    assert "secret" not in job.message
    assert "secret" in caplog.text
    assert server.store.find_model("lenet", 1).state is ModelState.SERVING


@pytest.mark.parametrize(
    ("showing", "reason"),
    [
        (
            Showing(102.0, 0.5, 9, (0.98,) * 9, 0.0, 0.0),
            r"not faster without doubt, its speed-up over sequential is 0\.980x",
        ),
        (Showing(101.5, 0.001, 9, (0.98,) * 9, 0.0, 0.0), "the sequential plan goes on serving"),
        (
            Showing(50.0, 0.01, 9, (2.0,) * 9, 1.0, 0.1),
            "outputs differ by 0.1 .* 0.0001 is allowed",
        ),
        (Showing(None, None, 0, (), 0.0, float("nan")), "outputs differ by nan"),
    ],
)
async def test_a_plan_that_is_wrong_or_slower_is_kept_but_does_not_serve(
    server: Server, showing: Showing, reason: str
) -> None:
    server.device.others = showing

    job = await registered(server)

    assert job.state is JobState.READY
    assert server.models.plans == {}
    (schedule,) = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    assert not schedule.provenance.promoted
    assert job.message == f"batch size 1: {schedule.provenance.reason}"
    assert re.search(reason, job.message)


async def test_a_plan_within_the_noise_of_the_sequential_one_does_not_serve(
    server: Server,
) -> None:
    ratios = (0.99, 1.02, 1.03, 1.01, 0.98, 1.02, 1.04, 0.97, 1.02)
    server.device.others = Showing(98.0, 0.02, 9, ratios, 0.0, 0.0)

    job = await registered(server)

    assert not server.models.plans
    assert "its speed-up over sequential is 1.020x (0.980 to 1.030)" in job.message


async def test_the_sequential_planner_cannot_be_slower_than_sequential(server: Server) -> None:
    server.device.others = Showing(120.0, 0.01, 9, (0.8,) * 9, 0.0, 0.0)

    job = await registered(server, planner=PlannerOptions("sequential"))

    assert (job.state, job.message) == (JobState.READY, "")


async def test_the_portfolio_serves_the_fastest_and_keeps_what_all_of_them_showed(
    server: Server,
) -> None:
    server.device.in_onnxruntime = Showing(80.0, 0.01, 10, (1.25,) * 9, 1e-6, 1e-6)

    job = await registered(server, planner=PlannerOptions("portfolio"))

    assert (job.state, job.message) == (JobState.READY, "")
    (schedule,) = server.models.plans.values()
    assert schedule.in_onnxruntime
    assert schedule.plan.streams > 1, "the best plan of our own is what runs if that cannot"
    seen = schedule.provenance
    assert (seen.measured_us, seen.sequential_us, seen.promoted) == (80.0, 100.0, True)
    names = [contender.name for contender in seen.candidates]
    assert (names[0], names[-1]) == ("sequential", "onnxruntime")
    (plans,) = server.device.contests
    assert len(plans) == len(set(plans)) == len(names) - 1


async def test_a_wrong_candidate_never_serves_and_the_job_says_so(server: Server) -> None:
    server.device.others = Showing(None, None, 0, (), 0.3, 0.3)

    job = await registered(server, planner=PlannerOptions("portfolio"))

    (schedule,) = server.models.plans.values()
    assert (schedule.planner, schedule.plan.streams) == ("sequential", 1)
    assert job.state is JobState.READY
    assert re.search(r"greedy.* is refused: outputs differ by 0.3", job.message)
    assert server.observer.refused > 0


async def test_a_precision_has_schedules_and_measurements_of_its_own(server: Server) -> None:
    exact = await registered(server)
    measured = sum(server.device.measured.values())

    job = await registered(server, precision="tf32")

    assert (exact.version, job.version, job.state) == (1, 2, JobState.READY)
    assert server.device.precision == "tf32"
    assert sum(server.device.measured.values()) == 2 * measured
    keys = [schedule.key for schedule in server.models.plans.values()]
    assert {(key.precision, key.accepted_error) for key in keys} == {("fp32", None), ("tf32", None)}


async def test_a_precision_that_is_refused_leaves_the_model_in_fp32(server: Server) -> None:
    server.device.sequential = Showing(100.0, 0.01, 10, (1.0,) * 9, 0.5, 0.03)

    job = await registered(server, precision="fp16")

    assert server.models.serving, "sequentially, in FP32"
    assert not server.models.plans
    assert "in fp16 outputs differ by 0.03 of the largest element, 0.01 is allowed" in job.message
    assert server.observer.refused > 0
    accepting = await registered(server, precision="fp16", accepted_error=0.05)
    assert accepting.message == ""
    (schedule,) = server.models.plans.values()
    assert (schedule.key.precision, schedule.provenance.tolerance) == ("fp16", 0.05)


async def test_a_precision_that_a_device_lacks_is_refused_at_once(server: Server) -> None:
    with pytest.raises(
        InvalidRequest, match="device cpu computes in fp32, tf32, fp16, not in bf16"
    ):
        await server.register(precision="bf16")
    with pytest.raises(InvalidRequest, match="no precision 'fp8'"):
        await server.register(precision="fp8")
    with pytest.raises(InvalidRequest, match="relative to the largest element"):
        await server.register(accepted_error=1.5)


async def test_a_worker_that_restarts_interrupts_nothing(server: Server) -> None:
    deaths = iter([WorkerRestarting("died"), WorkerRestarting("starting")])

    def die(_: Stage) -> None:
        if error := next(deaths, None):
            raise error

    server.device.before_measuring = die

    job = await registered(server)

    assert job.state is JobState.READY
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

    assert job.state is JobState.READY
    assert server.slept_s == [0.25, 0.5, 1.0]
    reason = "the planner process was killed (SIGKILL)"
    times = ("2nd", "3rd", "4th")
    assert said == [f"batch size 1: trying again ({each} try): {reason}" for each in times]
    assert set(server.device.measured.values()) == {1}, "what was measured is known"


@pytest.mark.parametrize(("kills", "state"), [(7, JobState.READY), (8, JobState.FAILED)])
async def test_an_importer_that_is_killed_is_tried_again_for_a_while(
    server: Server, kills: int, state: JobState
) -> None:
    left = iter(range(kills))

    async def import_or_die(*args: Any, **options: Any) -> None:
        if next(left, None) is not None:
            raise ImporterKilled("the importer was killed (SIGKILL) by another process")
        await server.importer(*args, **options)

    server.services = server.runner._services = replace(server.services, import_model=import_or_die)

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

    assert job.state is JobState.READY
    assert len(server.slept_s) > len(server.services.retry_pauses.pauses_s)
    assert set(server.slept_s) == {0.25}, "the pauses never grow"


async def test_a_planner_that_never_gets_on_leaves_the_model_serving(server: Server) -> None:
    server.planner.error = PlannerInterrupted("the planner process was killed (SIGKILL)")

    job = await registered(server)

    assert job.state is JobState.UNSCHEDULED
    assert job.message.endswith(
        "batch size 1: the planner process was killed (SIGKILL) (tried 4 times)"
    )
    assert server.planner.calls == 4
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelState.SERVING, job.message)


async def test_a_model_that_is_not_scheduled_is_by_registering_it_again(server: Server) -> None:
    server.planner.error = PlannerInterrupted("killed")
    unscheduled = await registered(server)
    server.planner.error = None

    job = await registered(server)

    assert (job.state, job.version) == (JobState.READY, unscheduled.version)
    model = server.models.known["lenet", 1]
    assert (model.state, model.message) == (ModelState.SERVING, "")
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
        assert (await until_ended(server, newest.id))[-1].state is JobState.UNSCHEDULED
        attempts.append(len(server.store.jobs()) - before)
    await server.stop()

    assert attempts == [1, 0, 1, 0, 1]


async def test_a_stage_that_kills_the_worker_each_time_fails_its_batch_size(
    server: Server,
) -> None:
    def die(_: Stage) -> None:
        raise WorkerRestarting("the device worker died")

    server.device.before_measuring = die

    job = await registered(server)

    assert job.state is JobState.UNSCHEDULED
    assert "batch size 1: the device worker died" in job.message
    assert ("lenet", 1) in server.models.serving


async def test_a_cached_schedule_that_does_not_fit_is_made_again(server: Server) -> None:
    await registered(server)
    server.models.swap_error = InvalidArtefact("the plan launches 4 of 5 units")

    job = await registered(server, name="other")

    assert job.state is JobState.READY
    assert server.planner.calls == 2
    assert ("other", 1, 1) in server.models.plans


# Watching.


async def test_a_slow_watcher_sees_the_end_and_blocks_nobody(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    slow = server.runner.watch(made.job.id)
    first = await anext(slow)

    server.device.gate.set()
    await until_ended(server, made.job.id)
    rest = [job async for job in slow]

    assert not first.state.has_ended
    assert [job.state for job in rest] == [JobState.READY]


async def test_an_ended_job_is_watched_once(server: Server) -> None:
    job = await registered(server)

    assert await until_ended(server, job.id) == [job]
    assert await server.runner.find(job.id) == job
    with pytest.raises(JobNotFound):
        await until_ended(server, "nonsense")


async def test_what_a_watcher_saw_end_is_on_disk(server: Server) -> None:
    job = await registered(server)

    assert server.store.find_job(job.id) == job


async def test_listing_shows_live_progress(server: Server) -> None:
    await registered(server, name="first")
    server.importer.gate = asyncio.Event()
    made = await server.register(name="second", content=b"2")
    await reach(server, made.job.id, JobState.IMPORTING)

    newest, oldest = await server.runner.list()

    assert (newest.model, newest.state, newest.detail) == (
        "second",
        JobState.IMPORTING,
        "lowering",
    )
    assert (oldest.model, oldest.state) == ("first", JobState.READY)
    assert [job.model for job in await server.runner.list("first")] == ["first"]
    assert server.observer.jobs == {"READY": 1, "IMPORTING": 1}


# Order.


async def test_jobs_take_turns_and_a_new_model_serves_while_another_is_measured(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    first = await server.register("first", b"1")
    await reach(server, first.job.id, JobState.PROFILING)

    second = await server.register("second", b"2")
    await reach(server, second.job.id, JobState.PROFILING)
    waiting = await server.runner.find(second.job.id)

    assert ("second", 1) in server.models.serving
    assert waiting.detail == "batch size 1: waiting for the device"
    server.device.gate.set()
    for made in (first, second):
        assert (await until_ended(server, made.job.id))[-1].state is JobState.READY


# Cancelling.


async def test_a_job_can_be_cancelled_while_queued_importing_and_profiling(server: Server) -> None:
    server.importer.gate = server.device.gate = asyncio.Event()
    importing = await server.register("a", b"1")
    queued = await server.register("b", b"2")
    await reach(server, importing.job.id, JobState.IMPORTING)

    assert (await server.runner.find(queued.job.id)).state is JobState.QUEUED
    for made in (queued, importing):
        assert (await server.runner.cancel(made.job.id)).state is JobState.CANCELLED
        assert server.models.known[made.model.name, 1].state is ModelState.FAILED
    server.importer.gate = None
    profiling = await server.register("c", b"3")
    await reach(server, profiling.job.id, JobState.PROFILING)
    assert (await server.runner.cancel(profiling.job.id)).state is JobState.CANCELLED

    assert server.store.find_model("c", 1).state is ModelState.SERVING
    assert server.device.measuring == 0
    assert not list(server.store.folder.uploads.iterdir())
    assert server.observer.jobs == {"CANCELLED": 3}


async def test_a_job_cancelled_before_it_began_is_cancelled(server: Server) -> None:
    made = await server.register()

    job = await server.runner.cancel(made.job.id)

    assert job.state is JobState.CANCELLED
    assert server.store.find_job(job.id) == job


async def test_cancelling_twice_is_once_and_cancelling_the_ended_is_refused(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    await reach(server, made.job.id, JobState.PROFILING)
    both = await asyncio.gather(*(server.runner.cancel(made.job.id) for _ in range(2)))
    assert both[0] == both[1] == await server.runner.cancel(made.job.id)

    server.device.gate = None
    done = await registered(server)

    with pytest.raises(PreconditionFailed, match="has ended already: READY"):
        await server.runner.cancel(done.id)
    with pytest.raises(JobNotFound):
        await server.runner.cancel("nonsense")


async def test_a_caller_who_leaves_while_cancelling_leaves_a_cancelled_job(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    await reach(server, made.job.id, JobState.PROFILING)

    caller = asyncio.create_task(server.runner.cancel(made.job.id))
    await asyncio.sleep(0)
    caller.cancel()

    assert (await until_ended(server, made.job.id))[-1].state is JobState.CANCELLED


async def test_deleting_a_model_ends_its_jobs(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    other = await server.register("other", b"2")

    await server.runner.cancel_model("lenet", 1)

    assert server.store.find_job(made.job.id).state is JobState.CANCELLED
    assert not (await server.runner.find(other.job.id)).state.has_ended


# Stopping and starting.


async def test_a_stop_leaves_jobs_unfinished_and_a_start_finishes_them(
    server: Server,
) -> None:
    server.device.gate = asyncio.Event()
    made = [await server.register(name, name.encode()) for name in "abc"]
    await reach(server, made[0].job.id, JobState.PROFILING)
    watcher = server.runner.watch(made[0].job.id)
    await anext(watcher)
    before = await server.runner.find(made[0].job.id)

    again = await server.restarted()

    with pytest.raises(Draining, match="goes on after its restart"):
        _ = [_ async for _ in watcher]
    ended = [(await until_ended(again, each.job.id)) for each in made]
    assert [jobs[-1].state for jobs in ended] == [JobState.READY] * 3
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
    await reach(server, made.job.id, JobState.PROFILING)
    server.store.delete_model("lenet", 1)

    again = await server.restarted()

    job = await again.runner.find(made.job.id)
    assert (job.state, job.message) == (JobState.CANCELLED, "the model was deleted")
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

    assert (again.state, again.version) == (JobState.READY, 1)
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
    assert (await until_ended(again, newest.id))[-1].state is JobState.READY
    assert again.device.measured.total() == server.device.measured.total()
    await again.stop()


async def test_watchers_do_not_hold_up_a_shutdown(server: Server) -> None:
    server.device.gate = asyncio.Event()
    made = await server.register()
    watcher = asyncio.create_task(until_ended(server, made.job.id))
    await reach(server, made.job.id, JobState.PROFILING)

    server.runner.release_watchers()

    with pytest.raises(Draining, match="goes on after its restart"):
        await asyncio.wait_for(watcher, 5)
    assert not (await server.runner.find(made.job.id)).state.has_ended


async def test_a_registration_completes_even_if_the_caller_leaves(server: Server) -> None:
    caller = asyncio.create_task(server.register())
    while not server.store.jobs():  # noqa: ASYNC110  (the store has no event to wait for)
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    (job,) = server.store.jobs()
    assert (await until_ended(server, job.id))[-1].state is JobState.READY


async def test_one_symbol_cannot_have_two_extents(server: Server) -> None:
    graph = template(extent="width")
    both = {**graph.inputs, "z": graph.inputs["x"]}
    server.importer.graph = replace(graph, inputs=both)

    job = await registered(server, shapes={"x": (1, 320)})

    assert job.state is JobState.UNSCHEDULED


async def test_profiling_again_measures_anew_while_the_old_plan_serves(server: Server) -> None:
    await registered(server)
    measured = server.device.measured.total()
    first = server.models.plans["lenet", 1, 1]
    server.device.gate = asyncio.Event()

    job = await server.runner.profile_again("lenet", 1)
    again = await server.runner.profile_again("lenet", 1)
    assert again.id == job.id, "one is under way already"
    assert server.models.plans["lenet", 1, 1] is first
    server.device.gate.set()
    await until_ended(server, job.id)

    assert server.device.measured.total() == 2 * measured
    assert server.models.plans["lenet", 1, 1] is not first
    assert server.models.plans["lenet", 1, 1].plan_id == first.plan_id
    assert server.importer.imports == 1
