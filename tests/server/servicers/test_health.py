"""Health by name: what is not registered any more is unknown, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2

from braid.server.devices.pool import Devices
from braid.server.frontend.readiness import Readiness
from braid.server.models.serving_models import ServingModels
from braid.server.servicers.health import Health

REQUEST = health_pb2.HealthCheckRequest(service="lenet")


class Aborted(Exception):
    """A call ended with a status."""


class Caller:
    """Context of a call: keeps what was written, and raises what it ended with."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def write(self, answer: Any) -> None:
        self.seen.append(answer.status)

    async def abort(self, code: grpc.StatusCode) -> None:
        raise Aborted(code)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_deleted_model_is_unknown_and_leaves_nothing_behind() -> None:
    health, caller, known = Health(), Caller(), {"lenet"}
    serving = SimpleNamespace(knows=lambda name: name in known)
    readiness = Readiness(health, cast(Devices, None), ())
    readiness.follow(cast(ServingModels, serving), None)
    readiness.model_answers("lenet", True)
    await turns()
    before = set(health.servicer._server_status)
    watching = asyncio.create_task(health.servicer.Watch(REQUEST, caller))
    await turns()

    known.clear()
    readiness.model_answers("lenet", False)
    await turns()
    watching.cancel()

    assert caller.seen == [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
    ]
    assert before - set(health.servicer._server_status) == {"lenet"}
    with pytest.raises(Aborted, match="NOT_FOUND"):
        await health.servicer.Check(REQUEST, caller)


async def test_a_model_that_is_registered_and_does_not_answer_is_not_serving() -> None:
    health = Health()
    serving = SimpleNamespace(knows=lambda name: True)
    readiness = Readiness(health, cast(Devices, None), ())
    readiness.follow(cast(ServingModels, serving), None)

    readiness.model_answers("lenet", False)
    await turns()

    answer = await health.servicer.Check(REQUEST, Caller())
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
