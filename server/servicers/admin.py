"""``braid.v1.AdminService``: registrations, jobs, models, schedules."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from braid.core.graph import graph_to_json
from braid.core.schedule import schedule_to_json
from braid.server.jobs.node_list import NodeList
from braid.server.jobs.runner import JobRunner
from braid.server.models.policies import VersionPolicies
from braid.server.models.queries import ModelQueries
from braid.server.models.serving_models import ServingModels
from braid.server.rpc.status import Context
from braid.server.servicers.admin_messages import (
    allowance_to_wire,
    job_to_wire,
    model_to_wire,
    node_to_wire,
    options_from_wire,
    residency_from_wire,
    serving_from_wire,
    serving_to_wire,
)
from braid.server.servicers.uploads import ModelUploads, arriving, caller_of, header_of
from braid.server.store.records import ModelVersion, check_model_name
from braid_client.wire import admin_pb2 as wire

MAX_LISTED_JOBS = 1000

SERVICE = wire.DESCRIPTOR.services_by_name["AdminService"]


@dataclass(frozen=True, slots=True)
class AdminServicer:
    """``braid.v1.AdminService``: each method converts, calls, converts."""

    _uploads: ModelUploads
    _runner: JobRunner
    _models: ServingModels
    _queries: ModelQueries
    _policies: VersionPolicies
    _nodes: NodeList

    async def RegisterModel(
        self, request_iterator: AsyncIterator[wire.RegisterModelRequest], context: Context
    ) -> wire.RegisterModelResponse:
        parts = arriving(request_iterator, self._uploads.idle_s)
        header = await header_of(parts)
        check_model_name(header.name)
        options = options_from_wire(header)
        async with self._uploads.file(parts, caller_of(context)) as received:
            if received.samples is not None:
                options = replace(options, samples=received.samples.digest)
            if header.HasField("residency"):
                residency = residency_from_wire(header.residency)
                await self._policies.set_residency(header.name, residency)
            if header.pin:
                await self._policies.pin(header.name, header.pin)
            registration = await self._runner.register(header.name, received, options)
            return wire.RegisterModelResponse(
                job_id=registration.job.id,
                model=registration.model.name,
                version=str(registration.model.version),
                already_registered=not registration.is_new_job,
                state=registration.job.state.value,
            )

    async def WatchJob(
        self, request: wire.WatchJobRequest, context: Context
    ) -> AsyncIterator[wire.Job]:
        async for job in self._runner.watch(request.job_id):
            yield job_to_wire(job)

    async def CancelJob(self, request: wire.CancelJobRequest, context: Context) -> wire.Job:
        return job_to_wire(await self._runner.cancel(request.job_id))

    async def ListJobs(
        self, request: wire.ListJobsRequest, context: Context
    ) -> wire.ListJobsResponse:
        limit = min(max(request.limit, 0) or 100, MAX_LISTED_JOBS)
        jobs = await self._runner.list(request.model or None, limit)
        return wire.ListJobsResponse(jobs=map(job_to_wire, jobs))

    async def ListModels(
        self, request: wire.ListModelsRequest, context: Context
    ) -> wire.ListModelsResponse:
        models = await self._queries.models()
        return wire.ListModelsResponse(models=[await self._describe(m) for m in models])

    async def GetModel(self, request: wire.GetModelRequest, context: Context) -> wire.Model:
        return await self._describe(await self._queries.find(request.model, request.version))

    async def DeleteModel(
        self, request: wire.DeleteModelRequest, context: Context
    ) -> wire.DeleteModelResponse:
        await self._policies.delete(request.model, request.version)
        return wire.DeleteModelResponse()

    async def GetServing(
        self, request: wire.GetServingRequest, context: Context
    ) -> wire.ServingConfig:
        return serving_to_wire(request.model, self._policies.config(request.model))

    async def SetServing(self, request: wire.ServingConfig, context: Context) -> wire.ServingConfig:
        check_model_name(request.model)
        now = self._policies.config(request.model)
        target = serving_from_wire(request)
        target = replace(target, interface=now.interface, plan=now.plan)
        await self._policies.configure(request.model, target)
        return serving_to_wire(request.model, self._policies.config(request.model))

    async def GetSchedule(
        self, request: wire.GetScheduleRequest, context: Context
    ) -> wire.GetScheduleResponse:
        model = await self._queries.find(request.model, request.version)
        placed = await self._queries.schedule(
            model, request.batch_size or 1, request.device, request.shapes
        )
        graph = await self._queries.graph(model, placed)
        return wire.GetScheduleResponse(
            plan_id=placed.schedule.plan_id,
            schedule_json=json.dumps(schedule_to_json(placed.schedule)),
            graph_json=json.dumps(graph_to_json(graph)),
        )

    async def ScheduleAgain(self, request: wire.ScheduleAgainRequest, context: Context) -> wire.Job:
        model = await self._queries.find(request.model, request.version)
        job = await self._runner.schedule_again(
            model.name,
            model.version,
            batch_size=request.batch_size or None,
            device=request.device,
        )
        return job_to_wire(job)

    async def PinPlan(self, request: wire.PinPlanRequest, context: Context) -> wire.ServingConfig:
        self._policies.config(request.model)  # or it is not found
        if request.plan:
            await self._queries.check_plan(request.model, request.plan)
        await self._policies.pin(request.model, request.plan)
        return serving_to_wire(request.model, self._policies.config(request.model))

    async def ListNodes(
        self, request: wire.ListNodesRequest, context: Context
    ) -> wire.ListNodesResponse:
        listed = await self._nodes.nodes()
        cpus, budget_bytes = self._nodes.allowance, self._nodes.memory_budget_bytes
        allowance = await asyncio.to_thread(allowance_to_wire, cpus, budget_bytes)
        nodes = [node_to_wire(node, allowance) for node in listed]
        return wire.ListNodesResponse(nodes=nodes)

    async def _describe(self, model: ModelVersion) -> wire.Model:
        schedules = await self._queries.schedules(model)
        served = self._models.served_version(model.name, model.version)
        return model_to_wire(model, None if served is None else served.any, schedules)
