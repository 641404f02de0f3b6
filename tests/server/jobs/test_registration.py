import asyncio
from dataclasses import replace
from functools import partial

import pytest

from braid.compiler.progress import Forecast
from braid.core.measurement import Speed
from braid.core.schedule import Stage
from braid.server.jobs import registration
from braid.server.store.records import JobStatus, ModelStatus
from tests.clock import SetClock, until_true
from tests.server.jobs.fakes import Server, template
from tests.server.jobs.watching import registered, until_ended

# The whole way.


async def test_a_registration_ends_with_a_verified_schedule_for_each_batch_size(
    server: Server,
) -> None:
    made = await server.register(sizes=(1, 4))
    seen = await until_ended(server, made.job.id)

    assert seen[-1].state is JobStatus.READY
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
    assert server.store.find_model("lenet", 1).state is ModelStatus.SERVING
    assert not list(server.store.folder.uploads.iterdir())


async def test_progress_never_goes_back_and_counts_the_measurements(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SetClock()

    def measures(_: Stage) -> None:
        clock.now += 0.025

    monkeypatch.setattr(registration, "Forecast", partial(Forecast, clock=clock))
    server.device.before_measuring = measures
    server.device.pause_s = 0.025  # so that who watches sees each step

    made = await server.register(sizes=(1, 4))
    seen = await until_ended(server, made.job.id)

    progress = [job.progress for job in seen]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    profiling = [job for job in seen if job.state is JobStatus.PROFILING]
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


async def test_the_same_bytes_under_another_name_measure_and_import_nothing(server: Server) -> None:
    await registered(server, sizes=(1, 4))
    measured, compared = server.device.measured.total(), len(server.device.compared)

    job = await registered(server, name="other", sizes=(1, 4))

    assert job.state is JobStatus.READY
    assert (server.device.measured.total(), len(server.device.compared)) == (measured, compared)
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

    assert job.state is JobStatus.READY
    assert server.device.measured.total() == 2 * measured


async def test_a_registration_completes_even_if_the_caller_leaves(server: Server) -> None:
    caller = asyncio.create_task(server.register())
    await until_true(server.store.jobs)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    (job,) = server.store.jobs()
    assert (await until_ended(server, job.id))[-1].state is JobStatus.READY


async def test_one_symbol_cannot_have_two_extents(server: Server) -> None:
    graph = template(extent="width")
    both = {**graph.inputs, "z": graph.inputs["x"]}
    server.importer.graph = replace(graph, inputs=both)

    job = await registered(server, shapes={"x": (1, 320)})

    assert job.state is JobStatus.UNSCHEDULED


async def test_profiling_again_measures_anew_while_the_old_plan_serves(server: Server) -> None:
    await registered(server)
    measured = server.device.measured.total()
    first = server.models.plans["lenet", 1, 1]
    server.device.gate = asyncio.Event()

    job = await server.runner.schedule_again("lenet", 1)
    again = await server.runner.schedule_again("lenet", 1)
    assert again.id == job.id, "one is under way already"
    assert server.models.plans["lenet", 1, 1] is first
    server.device.gate.set()
    await until_ended(server, job.id)

    assert server.device.measured.total() == 2 * measured
    assert server.models.plans["lenet", 1, 1] is not first
    assert server.models.plans["lenet", 1, 1].plan_id == first.plan_id
    assert server.importer.imports == 1
