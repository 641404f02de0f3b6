"""``inference.GRPCInferenceService``: every RPC converts, calls, converts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import grpc

from braid.core.errors import InvalidRequest, NotOffered
from braid.server.devices.pool import Devices
from braid.server.inference.call_memory import Account, CallMemory
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import GivenRequest
from braid.server.inference.shared_regions import SharedRegions
from braid.server.inference.slot_rows import Outcome
from braid.server.models.loading import ModelLoader
from braid.server.models.serving_models import ServingModels
from braid.server.models.versions import VersionPolicies
from braid.server.observability.metrics import Metrics
from braid.server.rpc.status import answering, wire_error
from braid.server.security.tokens import Digest, owner_in
from braid.server.servicers.health import Health
from braid.server.servicers.inference.infer import Answer, infer
from braid.server.servicers.inference.protowire import Part
from braid.server.servicers.inference.streams import answers
from braid.server.servicers.oip.describe import config_of, index_of, metadata_of, statistics_of
from braid.server.servicers.oip.loading import load_request
from braid.server.servicers.oip.log_settings import LogSettings
from braid.server.servicers.oip.tensors.requests import FindRegion, read_inputs, read_wishes
from braid.server.servicers.oip.tensors.responses import reply_to
from braid.server.servicers.oip.tensors.transfer import (
    Received,
    Reply,
    write_final_reply,
    write_reply,
    write_stream_reply,
)
from braid.server.servicers.oip.trace_settings import TraceSettings
from braid.server.servicers.oip.wire import messages, service

Context = grpc.aio.ServicerContext[Any, Any]

Write = Callable[[Reply], list[Part]]

EXTENSIONS = (
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "trace",
)


class OipServicer(service.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """What tritonclient and every other client of the protocol calls."""

    def __init__(
        self,
        models: ServingModels,
        memory: CallMemory,
        loader: ModelLoader,
        policies: VersionPolicies,
        devices: Devices,
        regions: SharedRegions,
        metrics: Metrics,
        health: Health,
        trace_settings: TraceSettings,
        log_settings: LogSettings,
    ) -> None:
        self._models = models
        self._memory = memory
        self._loader = loader
        self._policies = policies
        self._devices = devices
        self._regions = regions
        self._metrics = metrics
        self._health = health
        self._log_settings = log_settings
        self._trace_settings = trace_settings

    # Server.

    async def ServerLive(self, request: Any, context: Context) -> Any:
        """Whether the process answers."""
        return messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        """Whether inference is possible."""
        return messages.ServerReadyResponse(ready=self._health.is_ready)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        """Name, version, and the extensions that are offered."""
        shared = ("system_shared_memory",) if self._regions.is_offered else ()
        return messages.ServerMetadataResponse(
            name="braid", version=version("braid-serve"), extensions=sorted(EXTENSIONS + shared)
        )

    # Models.

    async def ModelReady(self, request: Any, context: Context) -> Any:
        """Whether a model answers; no for one that is unloaded or was never there."""
        found = self._models.for_request(request.name, request.version)
        return messages.ModelReadyResponse(ready=found.served is not None)

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        """Versions that answer, inputs and outputs."""
        async with answering(context):
            model = self._models.for_request(request.name, request.version).require().any
            served = [m.version for m in self._models.all_served() if m.name == model.name]
            return metadata_of(model, served)

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        """How a model is served."""
        async with answering(context):
            model = self._models.for_request(request.name, request.version).require().any
            return messages.ModelConfigResponse(config=config_of(model))

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        """Sums of one version, of a name's versions, or of all."""
        async with answering(context):
            models = self._models.all_served()
            if request.name:
                found = self._models.for_request(request.name, request.version).require().any
                models = [m for m in models if m.name == found.name]
                if request.version:
                    models = [found]
            return messages.ModelStatisticsResponse(
                model_stats=[
                    statistics_of(m, self._metrics.find_model(m.name, m.version).statistics)
                    for m in models
                ]
            )

    # Inference.

    async def ModelInfer(self, request: Received, context: Context) -> bytes:
        """One request, one answer."""
        async with answering(context):
            memory = self._memory.connection(context.peer())
            find, remaining = self._find_region(context), context.time_remaining()
            answer = await self._infer(request, remaining, write_reply, memory, find)
            answer.release_when_done(context)
            return answer.reply

    async def ModelStreamInfer(
        self, request_iterator: AsyncIterator[Received], context: Context
    ) -> AsyncIterator[bytes]:
        """Many requests on one stream, answered in their order; errors are answers, too."""
        memory = self._memory.stream(context.peer())
        find = self._find_region(context)

        async def answer(request: Received) -> Answer:
            return await self._answer_in_stream(request, context.time_remaining(), memory, find)

        stream = answers(request_iterator, answer, memory, in_order=True)
        async with answering(context), aclosing(stream) as responses:
            async for response in responses:
                yield response
                del response  # it may be large, and the next one may take long

    async def _answer_in_stream(
        self,
        request: Received,
        time_remaining: float | None,
        memory: Account,
        find: FindRegion,
    ) -> Answer:
        """The answer to a request of a stream; errors are answers, too."""
        try:
            return await self._infer(request, time_remaining, write_final_reply, memory, find)
        except Exception as error:
            _, reason = wire_error(error)
            name, number = request.message.model_name, request.message.id
            named = messages.ModelInferResponse(model_name=name, id=number)
            return Answer(b"".join(write_stream_reply(Reply(named), reason)))

    async def _infer(
        self,
        request: Received,
        time_remaining: float | None,
        write: Write,
        memory: Account,
        find: FindRegion,
    ) -> Answer:
        model, version = request.message.model_name, request.message.model_version
        read = partial(_given_request, request, write, find)
        return await infer(self._models, model, version, time_remaining, read, memory)

    # Repository.

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """All versions, or those that answer."""
        async with answering(context):
            _one_repository(request.repository_name)
            return index_of(await self._loader.index(request.ready))

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Let a model answer, from files in the request if there are any."""
        async with answering(context):
            _one_repository(request.repository_name)
            name = request.model_name
            devices = [device.name for device in self._devices.all]
            wanted = load_request(name, request.parameters, devices)
            await self._loader.load(name, wanted.files, wanted.options)
            if wanted.versions is not None:
                config = replace(self._policies.config(name), versions=wanted.versions)
                await self._policies.configure(name, config)
            return messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Let a model answer no more; nothing depends on another model here."""
        async with answering(context):
            _one_repository(request.repository_name)
            for name in request.parameters:
                if name != "unload_dependents":
                    raise InvalidRequest(f"parameter {name[:100]!r} is not known")
            await self._loader.unload(request.model_name)
            return messages.RepositoryModelUnloadResponse()

    # Shared memory.

    def _find_region(self, context: Context) -> FindRegion:
        """Finds regions of the caller's; who that is, is asked only by requests that name one."""
        return lambda name: self._regions.find(_owner(context), name)

    async def SystemSharedMemoryStatus(self, request: Any, context: Context) -> Any:
        """The regions that are registered, or one of them."""
        async with answering(context):
            response = messages.SystemSharedMemoryStatusResponse()
            for region in self._regions.listed(_owner(context), request.name):
                response.regions[region.name].CopyFrom(
                    messages.SystemSharedMemoryStatusResponse.RegionStatus(
                        name=region.name,
                        key=region.key,
                        offset=region.offset,
                        byte_size=region.size_bytes,
                    )
                )
            return response

    async def SystemSharedMemoryRegister(self, request: Any, context: Context) -> Any:
        """Give a part of a shared memory object a name that requests may use."""
        async with answering(context):
            owner, size_bytes = _owner(context), request.byte_size
            self._regions.register(owner, request.name, request.key, request.offset, size_bytes)
            return messages.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        """Forget one region, or all."""
        async with answering(context):
            self._regions.unregister(_owner(context), request.name)
            return messages.SystemSharedMemoryUnregisterResponse()

    # Settings.

    async def LogSettings(self, request: Any, context: Context) -> Any:
        """Change how much is logged, if asked to, and say how much is."""
        async with answering(context):
            self._log_settings.update(request.settings)
            return self._log_settings.response()

    async def TraceSetting(self, request: Any, context: Context) -> Any:
        """Change which requests are traced, if asked to, and say which are."""
        async with answering(context):
            if request.model_name:
                raise NotOffered("requests are traced alike for all models; leave the name out")
            self._trace_settings.update(request.settings)
            return self._trace_settings.response()

    # Not offered.

    async def CudaSharedMemoryStatus(self, request: Any, context: Context) -> Any:
        """Not offered."""
        async with answering(context):
            raise _no_cuda_memory()

    async def CudaSharedMemoryRegister(self, request: Any, context: Context) -> Any:
        """Not offered."""
        async with answering(context):
            raise _no_cuda_memory()

    async def CudaSharedMemoryUnregister(self, request: Any, context: Context) -> Any:
        """Not offered."""
        async with answering(context):
            raise _no_cuda_memory()


def _given_request(
    request: Received, write: Write, find: FindRegion, model: ModelReplica
) -> GivenRequest:
    """The request in the server's own terms, and how it is answered."""
    message = request.message
    wishes = read_wishes(message.outputs, find)

    def reply(outcome: Outcome) -> bytes:
        return b"".join(write(reply_to(message, model, outcome.outputs, wishes)))

    return replace(read_inputs(request, find), build_reply=reply)


def _owner(context: Context) -> Digest:
    """Whom a caller's shared memory belongs to."""
    metadata = context.invocation_metadata() or ()
    return owner_in({key: value for key, value in metadata if isinstance(value, str)})


def _one_repository(name: str) -> None:
    if name:
        raise NotOffered("there is one repository here, without a name; leave it out")


def _no_cuda_memory() -> NotOffered:
    return NotOffered("CUDA shared memory is not offered; system shared memory may be")
