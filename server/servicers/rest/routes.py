"""Routes of the protocol on the HTTP port."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar, cast

import grpc
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from braid.core.errors import ModelNotFound
from braid.core.pieces import Turns, Work
from braid.server.http2.calls import behaviour_of
from braid.server.models.serving_models import ServingModels
from braid.server.ports.http.requests import Body, BodyRoom, read_body
from braid.server.rpc.status import Context, Handler, answering
from braid.server.servicers.rest.answers import Written, decoded, response_of
from braid.server.servicers.rest.calls import Admission, HttpCall
from braid.server.servicers.rest.inference import HEAD_LENGTH, RestRequest, read_request
from braid.server.servicers.rest.json_reading import read_json
from braid.server.servicers.rest.openapi import document
from braid.server.servicers.rest.operations import INFER, OPERATIONS, PREDICT, V1_MODELS, Operation
from braid.server.servicers.rest.predict import read_predict
from braid.server.servicers.tensor_service import TensorService

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestServices:
    """Services that the routes call."""

    inference: TensorService  # of ``RestInference``
    models: ServingModels
    others: Mapping[str, Handler]  # RPCs beside inference, by name, ours among them
    admission: Admission
    turns: Turns
    reading: asyncio.Semaphore  # of large JSON: more than that wait, as bodies
    room: BodyRoom
    body_bytes: int  # most of one request, compressed or not


def rest_routes(services: RestServices) -> list[BaseRoute]:
    routes: list[BaseRoute] = [
        _ENDPOINTS.get(operation.form, AnswerOperation)(operation, services).route()
        for operation in OPERATIONS
    ]
    shown = document(OPERATIONS)

    async def openapi(_: Request) -> Response:
        return JSONResponse(shown)

    return [*routes, Route("/openapi.json", openapi)]


class AnswerOperation:
    """Endpoint of one operation, as an ASGI application."""

    def __init__(self, operation: Operation, services: RestServices) -> None:
        self._operation = operation
        self._services = services
        self._method = f"/{operation.service.full_name}/{operation.rpc}"

    def route(self) -> Route:
        return Route(self._operation.path, self, methods=[self._operation.method])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        call = HttpCall(request)
        try:
            try:
                context = cast(Context, call)
                async with answering(context):
                    self._services.admission.admit(request, self._method, call)
                    try:
                        response = await self.respond(request, context, call)
                    except HTTPException as error:  # of the body
                        body = {"error": error.detail}
                        response = JSONResponse(body, error.status_code, call.headers())
            except grpc.aio.AbortError:
                response = call.failure()
            await response(scope, receive, send)
            await call.connection.taken()
        finally:
            call.end()

    async def respond(self, request: Request, context: Context, call: HttpCall) -> Response:
        operation, services = self._operation, self._services
        message = operation.request()
        for at, name in operation.fields.items():
            if at in request.path_params:
                setattr(message, name, request.path_params[at])
        if operation.read is not None:
            with services.room.reading(request) as held:
                body = await self._read(read_json(await self._body(request, held)))
                if (filling := operation.read(body.given, message)) is not None:
                    await self._read(filling)
        behaviour = behaviour_of(services.others[operation.rpc])
        shown, status = operation.show(await behaviour(message, context))
        return JSONResponse(shown, status, call.headers())

    async def _read(self, work: Work[T]) -> T:
        return await self._services.turns.finish(work, self._services.reading)

    async def _body(self, request: Request, held: Body) -> bytes:
        limit_bytes = self._services.body_bytes
        body = await read_body(request, limit_bytes, held.hold)
        held.is_whole = True
        encoding = request.headers.get("content-encoding", "")
        return await decoded(body, encoding, limit_bytes, held.hold)


class Infer(AnswerOperation):
    """Endpoint of inference."""

    async def respond(self, request: Request, context: Context, call: HttpCall) -> Response:
        services, path = self._services, request.path_params
        services.inference.refuse_unread()
        call.connection.charges_answer = True
        with services.room.reading(request) as held:
            body = await self._body(request, held)
            reading = await self.reading(body, request, path["name"], path.get("version", ""))
            del body
            message = await self._read(reading)
            reply = await services.inference.infer(message, context)
        assert isinstance(reply, bytes | Written)
        head_bytes, headers = message.answer.json_bytes, call.headers()
        if head_bytes is not None:
            headers[HEAD_LENGTH] = str(head_bytes)
        return await response_of(reply, head_bytes is not None, request, headers, services.turns)

    async def reading(
        self, body: bytes, request: Request, name: str, version: str
    ) -> Work[RestRequest]:
        return read_request(body, request.headers.get(HEAD_LENGTH), name, version)


class Predict(Infer):
    """Endpoint of inference in the form of V1."""

    async def reading(
        self, body: bytes, request: Request, name: str, version: str
    ) -> Work[RestRequest]:
        models = self._services.models
        replicas = await models.present(models.for_request(name, version), None)
        return read_predict(body, name, version, replicas.any.inputs)


class Models(AnswerOperation):
    """Endpoint of the models that answer, or of the state of one, in the form of V1."""

    async def respond(self, request: Request, context: Context, call: HttpCall) -> Response:
        versions, name = self._services.models.versions(), request.path_params.get("name")
        if name is None:
            names = sorted({model.name for model, answers in versions if answers})
            return JSONResponse({"models": names}, headers=call.headers())
        states = [
            {"version": str(model.version), "state": "AVAILABLE" if answers else model.state.value}
            for model, answers in versions
            if model.name == name
        ]
        if not states:
            raise ModelNotFound(name)
        is_ready = any(state["state"] == "AVAILABLE" for state in states)
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        shown = {"name": name, "ready": is_ready, "model_version_status": states}
        return JSONResponse(shown, status, call.headers())


_ENDPOINTS = {INFER: Infer, PREDICT: Predict, V1_MODELS: Models}
"""Endpoints of operations that are not one RPC."""
