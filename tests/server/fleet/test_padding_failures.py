from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braid.core.padding import BY_REQUEST, ZEROS, PaddedAxis, PaddedInput
from braid.scheduler.options import PlannerSettings
from braid.server.inference.replica import ModelReplica
from braid.server.jobs.registration import serve_again
from braid.server.models.padding_checks import PaddingChecks
from tests.server.fleet.nodes import Node
from tests.server.inference.batching import Watcher
from tests.server.jobs.fakes import a_moment, template

AXIS = PaddedAxis(
    *("length", True, {"x": PaddedInput(1, ZEROS)}, {"y": 1}, 200, 0.0, BY_REQUEST, "")
)


class Served:
    """A node with a model of any length."""

    def __init__(self, name: str, folder: Path) -> None:
        self.node = Node(name, folder)
        self.node.server.importer.graph = template(extent="length")
        self.node.server.importer.padding = (AXIS,)
        self.checks = PaddingChecks(
            self.node.models.all_queued, lambda _: Watcher(), a_moment, self.node.store, 1e-4
        )

    @property
    def replica(self) -> ModelReplica:
        (replica,) = self.node.models.all_replicas()
        return replica


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[tuple[Served, Served]]:
    """Servers a and b of one database that serve what a registered."""
    a, b = Served("a", tmp_path), Served("b", tmp_path)
    for served in (a, b):
        await served.node.start()
    portfolio = PlannerSettings("portfolio")
    await a.node.register("net", b"one", shapes={"x": (1, 150)}, planner=portfolio)
    await b.node.look()
    yield a, b
    for served in (a, b):
        await served.node.stop()


async def test_padding_that_was_wrong_is_forbidden_on_all_servers_and_after_a_restart(
    nodes: tuple[Served, Served], tmp_path: Path
) -> None:
    a, b = nodes
    a.replica.forbid_padding("an error of 0.5")
    assert b.replica.padding == (AXIS,)

    await a.checks.follow()
    await b.checks.follow()
    again = Served("c", tmp_path)
    (model,) = again.node.store.models()
    again.node.models.restoring(model)
    await serve_again(model, again.node.services)

    for server in (a, b, again):
        (axis,) = server.replica.padding
        assert (axis.exact, axis.reason) == (False, "an error of 0.5")
        assert server.replica.lengths.failure == "an error of 0.5"
        assert server.replica.scheduled_lengths == (150,)
    again.node.store.close()


async def test_the_first_reason_stays(nodes: tuple[Served, Served]) -> None:
    a, b = nodes
    for served, error in ((a, "an error of 0.5"), (b, "an error of 0.7")):
        served.replica.forbid_padding(error)
        await served.checks.follow()

    assert a.node.store.padding_failure(a.replica.model) == "an error of 0.5"


async def test_a_deleted_version_is_forgotten(nodes: tuple[Served, Served]) -> None:
    a, _ = nodes
    model = a.replica.model
    a.replica.forbid_padding("an error of 0.5")
    await a.checks.follow()
    assert a.node.store.padding_failure(model)

    a.node.store.delete_model("net", 1)

    assert not a.node.store.padding_failure(model)
