"""What one node changes the others serve once they look, and nothing else of theirs changes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from braid.core.errors import (
    DeviceOutOfMemory,
    ModelLoading,
    ModelNotFound,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
)
from braid.core.schedule import ScheduleKey
from braid.server.devices.pool import Devices
from braid.server.models.queries import ModelQueries
from braid.server.models.restore import Restore
from braid.server.store.records import JobStatus, ModelStatus
from braid.server.store.serving_config import Batching, ServingConfig, VersionPolicy
from tests.clock import until_true
from tests.server.fleet.nodes import Node

Nodes = tuple[Node, Node]

BOTH = VersionPolicy(specific=(1, 2))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Nodes a and b of one type; nothing is registered."""
    pair = Node("a", tmp_path), Node("b", tmp_path)
    for node in pair:
        await node.start()
    yield pair
    for node in pair:
        await node.stop()


async def replaced(a: Node, b: Node) -> None:
    """A new version answers on ``a`` in place of the former one, which ``b`` has."""
    await a.register("net", b"one")
    await a.policies.configure("net", ServingConfig(VersionPolicy(latest=1)))
    await b.look()
    await a.register("net", b"two")
    await until_true(lambda: a.answering == {("net", 2)})


async def test_what_one_node_registers_answers_on_the_other(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one", sizes=(1, 4))

    await b.look()

    assert b.answering == {("net", 1)}
    assert b.server.importer.imports == 0
    assert not b.device.measured
    assert b.version("net", 1) == a.version("net", 1)
    chosen = b.models.all_served()[0].chosen
    assert chosen == a.models.all_served()[0].chosen
    assert {key.batch_size for key in chosen} == {1, 4}


async def test_a_model_that_is_being_imported_elsewhere_says_so(nodes: Nodes) -> None:
    a, b = nodes
    a.server.importer.gate = asyncio.Event()
    await a.server.register("net", b"one")

    await b.look()

    assert isinstance(b.models.for_request("net", "").refusal, ModelLoading)
    a.server.importer.gate.set()
    await until_true(lambda: a.answering == {("net", 1)})
    await until_true(lambda: not a.runner.is_working_on("net", 1))
    await b.look()
    assert b.answering == {("net", 1)}


async def test_an_unloaded_model_is_unloaded_everywhere(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await b.look()

    await a.loader.unload("net")
    await b.look()

    assert b.answering == set()
    assert isinstance(b.models.for_request("net", "").refusal, PreconditionFailed)
    await b.loader.load("net", {}, None)
    await a.look()
    assert a.answering == b.answering == {("net", 1)}


async def test_a_deleted_model_is_gone_everywhere(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await b.look()

    await a.policies.delete("net", "")
    await b.look()

    assert isinstance(b.models.for_request("net", "").refusal, ModelNotFound)
    assert set(b.device.kept.values()) <= {0}
    assert list(b.store.folder.artefacts.iterdir()) == []


async def test_labels_and_batching_are_those_that_another_node_set(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await a.register("net", b"two")
    await b.look()
    config = ServingConfig(BOTH, {"stable": 1}, Batching(max_wait_ms=7))

    await a.policies.configure("net", config)
    await b.look()

    assert b.policies.config("net") == config
    assert b.models.number("net", "") == 1
    assert {each.policy.max_wait_s for each in b.models.all_served()} == {0.007}


async def test_what_is_new_serves_before_what_is_old_stops(nodes: Nodes) -> None:
    a, b = nodes
    await replaced(a, b)
    seen: list[set[tuple[str, int]]] = []

    async def remember() -> None:
        seen.append(b.answering)

    b.device.before_loading = remember
    await b.look()

    assert seen == [{("net", 1)}]
    assert b.answering == {("net", 2)}
    assert (await a.store.call(a.store.find_model, "net", 1)).state is ModelStatus.UNLOADED


async def test_what_is_old_goes_on_while_the_files_of_what_is_new_are_away(nodes: Nodes) -> None:
    a, b = nodes
    await replaced(a, b)

    b.files.is_away = True
    await b.look()
    assert b.answering == {("net", 1)}

    b.files.is_away = False
    b.clock_s += 1.0
    await b.look()
    assert b.answering == {("net", 2)}


async def test_what_has_no_room_beside_the_old_serves_after_it(nodes: Nodes) -> None:
    a, b = nodes
    await replaced(a, b)

    b.device.refusal = DeviceOutOfMemory("there is no room on cpu")
    await b.look()

    assert b.answering == set()


async def test_what_is_unloaded_stops_while_files_are_away(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await b.look()
    b.files.is_away = True
    await a.register("net", b"two")
    await b.look()
    assert b.answering == {("net", 1)}

    await a.loader.unload("net")
    await b.look()

    assert b.answering == set()


async def test_a_node_that_follows_retires_nothing_by_its_old_policy(nodes: Nodes) -> None:
    a, b = nodes
    await replaced(a, b)
    await a.policies.configure("net", ServingConfig(BOTH))

    await b.look()
    await asyncio.sleep(0.01)
    await a.look()

    assert a.answering == b.answering == {("net", 1), ("net", 2)}


async def test_own_changes_are_left_as_they_are(nodes: Nodes) -> None:
    a, _ = nodes
    await a.register("net", b"one", sizes=(1, 4))
    loads, prepared = list(a.device.loads), a.models.all_served()[0].chosen

    await a.look()
    a.followed.lags_s.clear()
    await a.look()

    assert a.device.loads == loads
    assert a.models.all_served()[0].chosen is prepared
    assert a.followed.lags_s == []  # there was nothing to do


async def test_a_job_of_this_node_is_left_alone(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    a.server.importer.gate = asyncio.Event()
    await a.server.register("net", b"two")

    for _ in range(3):
        await a.look()

    assert a.answering == {("net", 1)}
    a.server.importer.gate.set()
    await until_true(lambda: a.answering == {("net", 1), ("net", 2)})
    await until_true(lambda: not a.runner.is_working_on("net", 2))
    assert a.server.importer.imports == 2
    await b.look()
    assert b.answering == a.answering


async def test_a_version_that_got_other_bytes_gets_them_everywhere(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await a.register("other", b"two")
    await b.look()
    before = b.models.all_served()[0]
    other = await a.store.call(a.store.find_model, "other", 1)
    placed = replace(a.version("net", 1), sha256=other.sha256)
    await a.store.call(a.store.serves, placed)

    await b.look()

    now = b.models.served_version("net", 1)
    assert now is not None
    assert now.any.digest == other.sha256
    assert now.any is not before
    assert b.version("net", 1).sha256 == other.sha256


async def test_a_job_for_bytes_that_were_replaced_elsewhere_ends(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await a.register("other", b"two")
    await b.look()
    b.device.gate = asyncio.Event()
    job = await b.runner.schedule_again("net", 1)
    await until_true(lambda: b.device.measuring == 1)
    await b.look()
    assert b.runner.is_working_on("net", 1)
    other = await a.store.call(a.store.find_model, "other", 1)
    await a.store.call(a.store.serves, replace(a.version("net", 1), sha256=other.sha256))

    await b.look()

    assert (await b.runner.find(job.id)).state is JobStatus.CANCELLED
    now = b.models.served_version("net", 1)
    assert now is not None
    assert now.any.digest == other.sha256


async def test_a_younger_schedule_serves_without_a_new_load(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await b.look()
    loads = list(b.device.loads)
    replica = b.models.all_served()[0]
    key = replica.schedule_keys[0]
    schedule = await a.store.call(a.store.find_schedule, key)
    assert schedule is not None
    seen = replace(schedule.provenance, measured_us=77.0, created="2027-01-01T00:00:00+00:00")
    younger = replace(schedule, provenance=seen)

    await a.store.call(a.store.put_schedule, younger)
    await b.look()

    assert replica.has_chosen(younger)
    assert b.device.loads == loads
    assert b.models.all_served() == [replica]


async def test_a_load_that_fails_is_said_and_tried_again_later(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    b.device.refusal = DeviceOutOfMemory("there is no room on cpu")

    await b.look()

    assert "no room on cpu" in b.models.as_seen(b.version("net", 1)).message
    assert b.loads.next_s == 1.0
    assert b.followed.lags_s == []  # it is not applied
    b.device.refusal = None
    await b.look()
    assert b.answering == set()  # its pause is not over
    b.clock_s += 1.0
    await b.look()
    assert b.answering == {("net", 1)}
    assert b.loads.next_s is None
    assert len(b.followed.lags_s) == 1


async def test_a_load_that_ends_without_the_database_gets_its_schedules_later(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = nodes
    await a.register("net", b"one")

    def find_schedule(key: ScheduleKey) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(b.store, "find_schedule", find_schedule)
        await b.look()
    assert b.answering == {("net", 1)}
    assert b.models.all_served()[0].chosen == {}
    assert b.loads.next_s is None

    await b.look()

    assert b.models.all_served()[0].chosen == a.models.all_served()[0].chosen


async def test_a_damaged_artefact_is_fetched_again_and_stops_no_other_node(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    b.files.is_damaged = True
    await b.look()
    assert b.answering == set()
    assert (await a.store.call(a.store.find_model, "net", 1)).state is ModelStatus.SERVING

    b.files.is_damaged = False
    b.clock_s += 1.0
    await b.look()

    assert b.answering == {("net", 1)}


@pytest.mark.parametrize("change", ["unload", "delete"])
async def test_a_change_elsewhere_ends_a_load(nodes: Nodes, change: str) -> None:
    a, b = nodes
    await a.register("net", b"one")
    is_fetching = asyncio.Event()

    async def fetch_for_ever() -> None:
        is_fetching.set()
        await asyncio.Future()

    b.files.before_fetching = fetch_for_ever
    await b.following.look()
    await is_fetching.wait()

    await (a.loader.unload("net") if change == "unload" else a.policies.delete("net", ""))
    await b.look()

    assert b.answering == set()
    assert b.models.knows("net") == (change == "unload")


async def test_calls_find_what_another_node_has_just_registered(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")

    await b.policies.configure("net", ServingConfig(labels={"stable": 1}))

    assert b.answering == {("net", 1)}
    await b.policies.configure("net", ServingConfig())
    await b.policies.delete("net", "1")
    await a.look()
    assert a.answering == set()


async def test_a_job_is_wanted_where_no_node_of_a_type_has_made_schedules(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = nodes
    wanted: list[str] = []
    for node, name in ((a, "a"), (b, "b")):

        async def want(name: str = name) -> None:
            wanted.append(name)

        monkeypatch.setattr(node.services.registry, "add_missing_jobs", want)
    b.device.device_key = "another-cpu"
    await a.register("net", b"one", sizes=(1, 4))

    for _ in range(2):
        await a.look()
        await b.look()

    assert b.answering == {("net", 1)}
    assert b.models.all_served()[0].chosen == {}
    assert wanted == ["b"]


async def test_queries_find_what_another_node_has_just_registered(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    await a.register("net", b"two")
    await a.policies.configure("net", ServingConfig(labels={"old": 1}))
    queries = ModelQueries(b.store, b.files, b.models, cast(Devices, None))

    found = [(await queries.find("net", each)).version for each in ("", "1", "old")]

    assert found == [2, 1, 1]
    for name, version in (("net", "3"), ("net", "young"), ("other", "")):
        with pytest.raises(NotFound):
            await queries.find(name, version)


async def test_a_copy_that_is_damaged_at_the_start_is_no_state_of_the_model(nodes: Nodes) -> None:
    a, b = nodes
    await a.register("net", b"one")
    b.files.is_damaged = True
    restore = Restore(b.services, b.models, is_shared=True)

    await restore.know()
    await restore.serve()

    assert (await a.store.call(a.store.find_model, "net", 1)).state is ModelStatus.SERVING
    assert "damaged" in b.models.as_seen(b.version("net", 1)).message
    b.files.is_damaged = False
    await b.look()
    assert b.answering == {("net", 1)}
