import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2

from braid.server.app.readiness import Readiness
from braid.server.devices.pool import Devices
from braid.server.models.serving_models import ServingModels
from braid.server.servicers.health import Health

REQUEST = health_pb2.HealthCheckRequest(service="lenet")
STATUS = health_pb2.HealthCheckResponse


class Aborted(Exception):
    """A call ended with a status."""


class Caller:
    """Context of a call: raises what it ended with."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


def watched(health: Health) -> AsyncIterator[Any]:
    return health.Watch(REQUEST, cast(Any, Caller()))


async def status(watching: AsyncIterator[Any]) -> int:
    """The next one that a caller is told."""
    answer = await asyncio.wait_for(anext(watching), timeout=120)
    return int(answer.status)


async def test_a_deleted_model_is_unknown_and_leaves_nothing_behind() -> None:
    health, known = Health(), {"lenet"}
    serving = SimpleNamespace(knows=lambda name: name in known, answers=lambda name: True)
    readiness = Readiness(health, cast(Devices, None), ())
    readiness.follow(cast(ServingModels, serving), None)
    watching = watched(health)
    assert await status(watching) == STATUS.SERVING

    known.clear()
    readiness.model_changed("lenet")

    assert await status(watching) == STATUS.SERVICE_UNKNOWN
    await watching.aclose()  # type: ignore[attr-defined]
    assert not health._watchers
    with pytest.raises(Aborted, match="NOT_FOUND"):
        await health.Check(REQUEST, cast(Any, Caller()))


async def test_a_model_that_is_registered_and_does_not_answer_is_not_serving() -> None:
    health = Health()
    serving = SimpleNamespace(knows=lambda name: True, answers=lambda name: False)
    readiness = Readiness(health, cast(Devices, None), ())
    readiness.follow(cast(ServingModels, serving), None)

    answer = await health.Check(REQUEST, cast(Any, Caller()))
    assert answer.status == STATUS.NOT_SERVING


async def test_who_reads_late_is_told_the_latest_and_holds_nobody_up() -> None:
    health = Health()
    late, prompt = watched(health), watched(health)
    assert [await status(late), await status(prompt)] == [STATUS.SERVICE_UNKNOWN] * 2

    told = []
    for serving in (True, False):
        health.answers = {"lenet": serving}.get
        health.changed("lenet")
        told.append(await status(prompt))

    assert told == [STATUS.SERVING, STATUS.NOT_SERVING]
    assert await status(late) == STATUS.NOT_SERVING
