"""Registrations on a machine whose cores other processes take; what follows once it is quiet."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from braid.compiler.provisional import FIRST_PAUSE_S, GROWTH, LONGEST_PAUSE_S, pause_s
from braid.compiler.results import BEFORE_S
from braid.core.cpu_times import CpuTimes
from braid.core.errors import InvalidRequest, PreconditionFailed, VersionNotFound
from braid.core.measurement import PlanMeasurement
from braid.core.runtimes import ONNXRUNTIME
from braid.core.schedule import Provisional, Schedule, schedule_from_json, schedule_to_json
from braid.engine.link.messages import PlaceMeasurement
from braid.scheduler.options import PlannerSettings
from braid.server.jobs.provisional_schedules import ProvisionalSchedules
from braid.server.jobs.registration import serve_again
from braid.server.jobs.runner import JobRunner
from braid.server.store.records import JobRecord, JobStatus, ModelStatus
from tests.server.jobs.fakes import Server
from tests.server.jobs.watching import reach, registered, until_ended

BUSY = "9 of 9 rounds of the comparison did not count: threads waited for their cores"


@dataclass
class Machine:
    """Its clock, which each sleep sets forward, and how busy its cores are."""

    ahead_s: float = 0.0
    idle_part: float = 1.0
    sleeps: int = 0

    def clock(self) -> float:
        return time.time() + self.ahead_s

    def cpu_times(self) -> CpuTimes:
        ticks = round(self.clock() * 200)
        return CpuTimes(ticks, round(ticks * self.idle_part))

    async def still(self) -> None:
        """No requests."""

    async def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds
        self.sleeps += 1
        await asyncio.sleep(0.001)


def stored(server: Server, batch_size: int = 1) -> Schedule:
    (found,) = (
        schedule
        for schedule in server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
        if schedule.key.batch_size == batch_size
    )
    return found


@asynccontextmanager
async def in_idle_time(server: Server, machine: Machine) -> AsyncIterator[ProvisionalSchedules]:
    """Provisional schedules are made again; a server restored its models before."""
    provisional = ProvisionalSchedules(
        *(lambda: server.runner, machine.still, machine.cpu_times, machine.clock, machine.sleep),
        state_of=lambda device: server.device.state.name,
    )
    services = replace(
        server.services,
        on_schedule=[*server.services.on_schedule, provisional.schedule_chosen],
        on_lacking=provisional.lacks,
    )
    await server.runner.stop()
    server.runner = JobRunner(services)
    await server.runner.start()
    for model in server.store.models():
        await serve_again(model, services)
    task = asyncio.create_task(provisional.run())
    try:
        yield provisional
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def waited_for(event: asyncio.Event) -> None:
    await event.wait()


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not is_so():  # noqa: ASYNC110  (the store has no event to wait for)
            await asyncio.sleep(0.01)


def is_settled(server: Server, batch_size: int = 1) -> bool:
    """Whether a schedule is no longer provisional, and the job that made it has ended."""
    schedule = stored(server, batch_size)
    return schedule.provenance.provisional is None and not server.runner.has_jobs


def jobs(server: Server) -> list[JobRecord]:
    return server.store.jobs()


def tries(server: Server) -> int:
    provisional = stored(server).provenance.provisional
    assert provisional is not None
    return provisional.tries


# A busy machine.


@pytest.mark.parametrize("planner", ["ios", "portfolio", "sequential"])
async def test_a_noisy_comparison_promotes_no_plan_and_says_so(
    server: Server, planner: str
) -> None:
    server.device.doubt = BUSY
    server.device.others = PlanMeasurement(50.0, 0.01, 10, (2.0,) * 9, 1e-6, 1e-6)

    job = await registered(server, planner=PlannerSettings(planner))

    schedule = stored(server)
    assert schedule.serves_sequentially
    assert schedule.speed is None
    assert all(contender.speedup is None for contender in schedule.provenance.candidates)
    assert schedule.provenance.provisional is not None
    assert not schedule.provenance.provisional.is_compared
    assert schedule.provenance.provisional.reason == BUSY
    assert job.state is JobStatus.READY, "the model serves, and nothing is to be done"
    assert "the sequential plan serves; provisional" in job.message
    assert BUSY in job.message
    assert server.store.find_model("lenet", 1).state is ModelStatus.SERVING


ALWAYS_FASTER = PlanMeasurement(7.0, 0.9, 10, (), 1e-6, 1e-6, range_us=(6.0, 59.9))


async def test_a_runtime_that_is_faster_in_every_run_serves_until_it_can_be_compared(
    server: Server,
) -> None:
    server.device.doubt = BUSY
    slow = PlanMeasurement(115.0, 0.5, 10, (), 1e-6, 1e-6, range_us=(60.0, 200.0))
    server.device.sequential = server.device.others = slow
    server.device.in_runtime = ALWAYS_FASTER

    job = await registered(server, planner=PlannerSettings("portfolio"))

    schedule = stored(server)
    assert server.models.plans["lenet", 1, 1] == schedule
    assert (schedule.runtime, schedule.serving_us, schedule.speed) == (ONNXRUNTIME, 7.0, None)
    assert schedule.provenance.provisional is not None
    assert not schedule.provenance.provisional.is_compared
    assert job.message.startswith(
        "batch size 1: onnxruntime serves, as its slowest run took less than the fastest one of "
        "the sequential plan; provisional"
    )
    assert schedule.best_other is None, "their rounds did not count"
    server.device.doubt = ""
    server.device.in_runtime = PlanMeasurement(130.0, 0.01, 10, (0.9,) * 9, 1e-6, 1e-6)
    async with in_idle_time(server, Machine()):
        await until(lambda: is_settled(server))
    assert not stored(server).runtime
    assert stored(server).best_other is not None


async def test_one_that_was_faster_in_every_run_serves_on_if_the_next_ones_tell_nothing(
    server: Server,
) -> None:
    server.device.doubt = BUSY
    server.device.sequential = replace(server.device.sequential, range_us=(60.0, 200.0))
    server.device.in_runtime = ALWAYS_FASTER
    await registered(server, planner=PlannerSettings("portfolio"))
    server.device.in_runtime = replace(ALWAYS_FASTER, range_us=(6.0, 60.1))

    await until_ended(server, (await server.runner.schedule_again("lenet", 1)).id)

    schedule = stored(server)
    assert schedule.runtime == ONNXRUNTIME
    assert schedule.is_undecided
    assert tries(server) == 1, "it was asked for again, so counting begins again"


async def test_in_another_precision_a_noisy_comparison_leaves_its_sequential_plan(
    server: Server,
) -> None:
    server.device.doubt = BUSY

    await registered(server, precision="fp16")
    await registered(server, name="chosen", precision="auto")

    narrow, auto = server.models.plans["lenet", 1, 1], server.models.plans["chosen", 1, 1]
    assert (narrow.precision, narrow.planner) == ("fp16", "sequential")
    assert (auto.precision, auto.planner) == ("fp32", "sequential")
    assert None not in (narrow.provenance.provisional, auto.provenance.provisional)


async def test_a_plan_searched_by_disturbed_figures_serves_if_it_is_faster_but_provisionally(
    server: Server,
) -> None:
    server.device.is_disturbed = lambda _: True

    job = await registered(server)

    schedule = server.models.plans["lenet", 1, 1]
    provisional = schedule.provenance.provisional
    assert provisional is not None
    assert provisional.is_compared
    measured = schedule.provenance.stages_measured
    assert f"other processes had the cores in {measured} of the" in provisional.reason
    assert "ios serves; provisional" in job.message


async def test_disturbed_figures_serve_one_search_and_are_not_kept(server: Server) -> None:
    server.device.is_disturbed = lambda _: True
    await registered(server)
    measured = server.device.measured.copy()
    assert set(measured.values()) == {1}, "within one job they are"
    server.device.is_disturbed = lambda _: False

    await registered(server, name="other", content=b"other bytes, same graph")

    assert server.device.measured == dict.fromkeys(measured, 2)
    assert server.models.plans["other", 1, 1].provenance.provisional is None


async def test_a_single_disturbed_stage_is_no_reason_to_do_all_again(server: Server) -> None:
    first = []

    def is_disturbed(stage: object) -> bool:
        first.append(stage)
        return len(first) == 1

    server.device.is_disturbed = is_disturbed

    assert (await registered(server, sizes=(1,))).message == ""
    assert stored(server).provenance.provisional is None


async def test_runs_side_by_side_that_were_disturbed_are_not_used_and_measured_again(
    server: Server,
) -> None:
    way = PlaceMeasurement(2, ONNXRUNTIME, 100.0, (1.5,) * 9)
    server.device.side_by_side = [replace(way, doubt=BUSY)]

    await registered(server)

    schedule = stored(server)
    assert schedule.provenance.side_by_side is None
    provisional = schedule.provenance.provisional
    assert provisional is not None
    assert provisional.is_compared
    assert provisional.reason == f"of runs side by side {BUSY}"
    assert schedule.provenance.promoted, "its plan was compared"
    server.device.side_by_side = [way]
    async with in_idle_time(server, Machine()):
        await until(lambda: is_settled(server))
    assert stored(server).side_by_side_id


async def test_by_disturbed_figures_no_unusual_kernel_is_chosen(server: Server) -> None:
    server.device.kernel_us["other"] = 10.0
    server.device.kernels_are_disturbed = True

    await registered(server)

    assert stored(server).provenance.choices == {}
    server.device.kernels_are_disturbed = False
    await registered(server, name="other", content=b"other bytes, same graph")
    assert server.models.plans["other", 1, 1].provenance.choices == {"ab": "other"}


# Quiet again.


async def test_once_the_machine_is_quiet_the_fastest_plan_serves(server: Server) -> None:
    server.device.doubt = BUSY
    server.device.is_disturbed = lambda _: True
    await registered(server)
    assert server.models.plans == {}
    machine = Machine(idle_part=0.3)
    server.device.doubt, server.device.is_disturbed = "", lambda _: False

    async with in_idle_time(server, machine):
        await until(lambda: machine.sleeps > 100)
        assert len(jobs(server)) == 1, "the cores are taken"
        machine.idle_part = 0.9
        await until(lambda: is_settled(server))

    schedule = server.models.plans["lenet", 1, 1]
    assert schedule.provenance.promoted
    assert not schedule.serves_sequentially
    again, first = jobs(server)
    assert (again.state, again.message) == (JobStatus.READY, "")
    assert BUSY in first.message


async def test_what_was_measured_in_that_time_is_measured_again_and_nothing_else(
    server: Server,
) -> None:
    await registered(server, name="before", content=b"other bytes, same graph")
    measured = server.device.measured.total()
    await asyncio.sleep(3 * BEFORE_S)
    server.device.doubt = BUSY
    await registered(server)
    await registered(server, sizes=(4,))
    of_four = server.device.measured.total() - measured
    assert of_four == measured, "batch size 1 was known"
    server.device.doubt = ""

    async with in_idle_time(server, Machine()):
        await until(lambda: is_settled(server, 1))
        await until(lambda: is_settled(server, 4))

    assert server.device.measured.total() == measured + 2 * of_four


async def test_after_a_restart_it_is_provisional_still_and_made_again(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)

    again = await server.restarted()

    assert stored(again).provenance.provisional is not None
    try:
        async with in_idle_time(again, Machine()):
            await until(lambda: is_settled(again))
        assert again.models.plans["lenet", 1, 1].provenance.promoted
    finally:
        await again.stop()


async def test_while_it_stays_busy_the_tries_become_rare(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)
    machine, began = Machine(), time.time()

    async with in_idle_time(server, machine):
        await until(lambda: tries(server) == 4)

    assert len(jobs(server)) == 4
    assert machine.clock() - began > FIRST_PAUSE_S * (1 + 1 + GROWTH)
    assert pause_s(0) == pause_s(1) == FIRST_PAUSE_S < pause_s(2) < pause_s(5)
    assert pause_s(1000) == LONGEST_PAUSE_S


async def test_nothing_is_made_again_while_another_registration_runs(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)
    server.device.doubt = ""
    machine = Machine(idle_part=0.0)

    async with in_idle_time(server, machine):
        go_on = asyncio.Event()
        server.device.before_comparing = lambda: waited_for(go_on)
        made = await server.register("second", b"second")
        await reach(server, made.job.id, JobStatus.VERIFYING)
        machine.idle_part = 1.0
        seen = machine.sleeps
        await until(lambda: machine.sleeps > seen + 100)
        assert len(jobs(server)) == 2
        go_on.set()
        await until(lambda: is_settled(server))


@pytest.mark.parametrize("asks", ["for_it", "for_another"])
async def test_requests_go_first_until_somebody_waits_for_a_job(server: Server, asks: str) -> None:
    server.device.doubt = BUSY
    await registered(server)
    server.device.doubt = ""

    async with in_idle_time(server, Machine()):
        go_on = asyncio.Event()
        server.device.before_comparing = lambda: waited_for(go_on)
        await until(lambda: server.runner.has_jobs)
        assert not server.device.is_awaited
        if asks == "for_it":
            await server.runner.schedule_again("lenet", 1)
        else:
            await server.register("second", b"second")
        assert server.device.is_awaited
        go_on.set()
        await until(lambda: is_settled(server))

    assert not server.device.is_awaited


async def test_a_cancelled_one_is_left_alone_for_hours(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)
    server.device.before_comparing = lambda: waited_for(asyncio.Event())
    machine = Machine()

    async with in_idle_time(server, machine):
        await until(lambda: server.runner.has_jobs)
        await server.runner.cancel(jobs(server)[0].id)
        await until(lambda: not server.runner.has_jobs)
        seen = machine.sleeps
        machine.ahead_s += LONGEST_PAUSE_S / 2
        await until(lambda: machine.sleeps > seen + 50)
        assert len(jobs(server)) == 2


async def test_a_model_that_was_deleted_is_forgotten(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)
    machine = Machine(idle_part=0.0)

    async with in_idle_time(server, machine):
        server.store.delete_model("lenet", 1)
        machine.idle_part = 1.0
        await registered(server, name="second", content=b"second")
        await until(lambda: len(jobs(server)) == 3 and not server.runner.has_jobs)

    assert {job.model for job in jobs(server)} == {"lenet", "second"}


async def test_another_model_of_the_same_bytes_takes_over_what_was_settled(server: Server) -> None:
    server.device.doubt = BUSY
    await registered(server)
    await registered(server, name="twin")
    server.device.doubt = ""
    compared = len(server.device.compared)

    async with in_idle_time(server, Machine()):
        await until(lambda: len(server.models.plans) == 2)

    assert len(server.device.compared) == compared + 1


# Asked for, and doubted.


async def test_a_plan_that_was_compared_serves_on_if_nothing_can_be_decided_now(
    server: Server,
) -> None:
    await registered(server)
    first = stored(server)
    assert first.provenance.promoted
    server.device.doubt = BUSY

    job = (await until_ended(server, (await server.runner.schedule_again("lenet", 1)).id))[-1]

    now = stored(server)
    assert now.plan_id == first.plan_id
    assert now.provenance.promoted
    assert now.provenance.candidates == first.provenance.candidates
    assert now.provenance.provisional is not None
    assert now.provenance.provisional.is_compared
    assert "ios serves; provisional" in job.message
    assert server.models.plans["lenet", 1, 1] == now
    again = await server.restarted()
    try:
        await serve_again(again.store.find_model("lenet", 1), again.services)
        assert again.models.plans["lenet", 1, 1].plan_id == first.plan_id
    finally:
        await again.stop()


async def test_only_what_was_asked_for_is_scheduled_again(server: Server) -> None:
    await registered(server, sizes=(1, 4))
    before = {size: stored(server, size) for size in (1, 4)}
    compared = len(server.device.compared)

    job = await server.runner.schedule_again("lenet", 1, batch_size=4, device="cpu")
    await until_ended(server, job.id)

    assert len(server.device.compared) == compared + 1
    assert stored(server, 1) == before[1]
    assert stored(server, 4).provenance.stages_measured > 0


async def test_schedules_of_the_same_bytes_asked_for_otherwise_are_left_alone(
    server: Server,
) -> None:
    await registered(server)
    await registered(server, name="other", planner=PlannerSettings("portfolio"))

    await until_ended(server, (await server.runner.schedule_again("other", 1)).id)

    found = server.store.schedules_of(server.store.find_model("lenet", 1).sha256)
    assert len(found) == 2, "the next start would find one missing, and nobody would make it"


async def test_what_cannot_be_scheduled_again_is_refused(server: Server) -> None:
    await registered(server, sizes=(1, 4))
    again = server.runner.schedule_again

    with pytest.raises(InvalidRequest, match="scheduled for batch sizes 1, 4, not for 3"):
        await again("lenet", 1, batch_size=3)
    with pytest.raises(InvalidRequest, match="no device 'gpu'; devices: cpu"):
        await again("lenet", 1, device="gpu")
    with pytest.raises(VersionNotFound):
        await again("lenet", 2)
    server.store.set_model_state("lenet", 1, ModelStatus.UNLOADED)
    with pytest.raises(PreconditionFailed, match="does not serve; load it first"):
        await again("lenet", 1)
    server.store.set_model_state("lenet", 1, ModelStatus.DAMAGED)
    with pytest.raises(PreconditionFailed, match="register its file again"):
        await again("lenet", 1)


async def test_a_schedule_whose_profile_was_wrong_is_made_again_in_idle_time(
    server: Server,
) -> None:
    await registered(server, sizes=(1, 4))
    measured = server.device.measured.total()
    machine = Machine(idle_part=0.0)

    async with in_idle_time(server, machine):
        why = "it takes 0.55 times as long as when it was measured"
        await server.runner.doubt("lenet", 1, batch_size=4, device="cpu", reason=why)
        provisional = stored(server, 4).provenance.provisional
        assert provisional is not None
        assert provisional.reason == why
        assert stored(server, 1).provenance.provisional is None
        assert server.models.plans["lenet", 1, 4].provenance.promoted, "it serves meanwhile"
        machine.idle_part = 1.0
        await until(lambda: is_settled(server, 4))

    assert server.device.measured.total() > measured, "what it rested on was forgotten"


# Documents.


async def test_a_settled_schedule_is_stored_as_versions_before_know_it(server: Server) -> None:
    await registered(server)
    document = schedule_to_json(stored(server))

    assert "provisional" not in document["provenance"]
    assert schedule_from_json(document).provenance.provisional is None
    provisional = stored(server).found_provisional(
        Provisional("busy", 3, 5.0, 7.0, is_compared=True)
    )
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(provisional)))) == provisional
    assert provisional.plan_id == stored(server).plan_id
