"""RPCs and messages that describe the server and the models in the protocol's terms."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from braid.core.tensor import TensorType
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import DEFAULT_PRIORITY, PRIORITY_LEVELS
from braid.server.models.serving_models import ServingModels
from braid.server.observability.metrics import Metrics
from braid.server.observability.series.requests import Duration, Statistics
from braid.server.repository.configuration import BACKEND, PLATFORM
from braid.server.repository.declared import data_type_of, open_dims
from braid.server.rpc.status import Context
from braid.server.servicers.health import Health
from braid.server.servicers.oip.wire import config, messages
from braid.server.store.interface import Reshape
from braid_client.version import __version__

EXTENSIONS = (
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "trace",
)


@dataclass(frozen=True, slots=True)
class ServerMethods:
    """RPCs about the server."""

    _health: Health
    _has_shared_memory: bool

    async def ServerLive(self, request: Any, context: Context) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        return messages.ServerReadyResponse(ready=self._health.is_ready)

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        shared = ("system_shared_memory",) if self._has_shared_memory else ()
        return messages.ServerMetadataResponse(
            name="braid", version=__version__, extensions=sorted(EXTENSIONS + shared)
        )


@dataclass(frozen=True, slots=True)
class ModelMethods:
    """RPCs about models that answer."""

    _models: ServingModels
    _metrics: Metrics

    async def ModelReady(self, request: Any, context: Context) -> Any:
        """Return whether a model answers; false for one that is unloaded or unknown."""
        target = self._models.for_request(request.name, request.version)
        is_away = target.coming is not None and target.coming.answers
        return messages.ModelReadyResponse(ready=is_away or target.served is not None)

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        model = await self._present(request, context)
        served = [m.version for m in self._models.all_served() if m.name == model.name]
        return messages.ModelMetadataResponse(
            name=model.name,
            versions=map(str, served),
            platform=PLATFORM,
            inputs=_tensors(_shown(model.inputs, model.reshaped_inputs)),
            outputs=_tensors(_shown(model.output_specs, model.reshaped_outputs)),
        )

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        model = await self._present(request, context)
        return messages.ModelConfigResponse(config=config_of(model))

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        models = self._models.all_served()
        if request.name:
            model = await self._present(request, context)
            models = [m for m in models if m.name == model.name]
            if request.version:
                models = [model]
        return messages.ModelStatisticsResponse(
            model_stats=[
                statistics_of(m, self._metrics.find_model(m.name, m.version).statistics)
                for m in models
            ]
        )

    async def _present(self, request: Any, context: Context) -> ModelReplica:
        limit_s = context.time_remaining()
        deadline = None if limit_s is None else monotonic() + limit_s
        resolved = self._models.for_request(request.name, request.version)
        return (await self._models.present(resolved, deadline)).any


def config_of(model: ModelReplica) -> Any:
    """Build a ModelConfig; with a batch, all dims in the message leave dimension 0 out."""
    interface = model.interface
    batched = model.batched and interface.has_batch
    dims = partial(open_dims, without_batch=batched)
    described = config.ModelConfig(
        name=model.name,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=model.batch_sizes[-1] if batched else 0,
        input=[
            config.ModelInput(name=name, data_type=_type(spec), dims=dims(spec))
            for name, spec in _shown(model.inputs, model.reshaped_inputs).items()
        ],
        output=[
            config.ModelOutput(name=name, data_type=_type(spec), dims=dims(spec))
            for name, spec in _shown(model.output_specs, model.reshaped_outputs).items()
        ],
    )
    if batched:
        described.dynamic_batching.preferred_batch_size.extend(model.batch_sizes)
        described.dynamic_batching.priority_levels = PRIORITY_LEVELS
        described.dynamic_batching.default_priority_level = DEFAULT_PRIORITY
    formats = {tensor.name: tensor.format for tensor in interface.inputs}
    for tensor in described.input:
        tensor.format = config.ModelInput.Format.Value(formats.get(tensor.name, "FORMAT_NONE"))
    of_file = {"metadata": repr(dict(model.metadata))} if model.metadata else {}
    for name, text in {**of_file, **interface.parameters, "sha256": model.model.sha256}.items():
        described.parameters[name].string_value = text
    return described


def _shown(
    specs: Mapping[str, TensorType], reshapes: Mapping[str, Reshape]
) -> Mapping[str, TensorType]:
    return {**specs, **{name: shown for name, (shown, _) in reshapes.items()}}


def statistics_of(model: ModelReplica, sums: Statistics) -> Any:
    """Build ModelStatistics. Copies to and from the device are part of compute_infer."""
    return messages.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=sums.last_request_unix_ms,
        inference_count=sums.rows,
        execution_count=sums.batches,
        inference_stats=messages.InferStatistics(
            success=_duration(sums.success),
            fail=_duration(sums.fail),
            queue=_duration(sums.queue),
            compute_infer=_duration(sums.compute),
        ),
        batch_stats=[
            messages.InferBatchStatistics(batch_size=size, compute_infer=_duration(spent))
            for size, spent in sorted(sums.by_batch_size.items())
        ],
    )


def _tensors(specs: Mapping[str, TensorType]) -> list[Any]:
    """Build the metadata of tensors; open extents, the batch among them, are -1."""
    return [
        messages.ModelMetadataResponse.TensorMetadata(
            name=name, datatype=spec.dtype, shape=open_dims(spec, without_batch=False)
        )
        for name, spec in specs.items()
    ]


def _type(spec: TensorType) -> int:
    return int(config.DataType.Value(data_type_of(spec)))


def _duration(duration: Duration) -> Any:
    return messages.StatisticDuration(count=duration.count, ns=duration.ns)
