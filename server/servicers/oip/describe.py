"""Models as the protocol describes them: metadata, configuration, statistics, index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from braid.core.tensor import BATCH, TensorSpec
from braid.server.inference.replica import ModelReplica
from braid.server.inference.requests import DEFAULT_PRIORITY, PRIORITY_LEVELS
from braid.server.models.loading import IndexEntry
from braid.server.observability.statistics import Duration, Statistics
from braid.server.servicers.oip.wire import config, messages

PLATFORM = "onnx_braid"
BACKEND = "braid"

_TYPE_NAMES = {"BOOL": "TYPE_BOOL", "BYTES": "TYPE_STRING"}


def metadata_of(model: ModelReplica, versions: Iterable[int]) -> Any:
    """ModelMetadataResponse; open extents, the batch among them, are -1."""
    return messages.ModelMetadataResponse(
        name=model.name,
        versions=[str(version) for version in versions],
        platform=PLATFORM,
        inputs=_tensors(model.inputs),
        outputs=_tensors(model.output_specs),
    )


def config_of(model: ModelReplica) -> Any:
    """ModelConfig; with a batch, dims leave dimension 0 out, as everywhere in this message."""
    batched = model.batched
    described = config.ModelConfig(
        name=model.name,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=model.batch_sizes[-1] if batched else 0,
        input=[
            config.ModelInput(name=name, data_type=_type(spec), dims=_dims(spec, batched))
            for name, spec in model.inputs.items()
        ],
        output=[
            config.ModelOutput(name=name, data_type=_type(spec), dims=_dims(spec, batched))
            for name, spec in model.output_specs.items()
        ],
    )
    if batched:
        described.dynamic_batching.preferred_batch_size.extend(model.batch_sizes)
        described.dynamic_batching.priority_levels = PRIORITY_LEVELS
        described.dynamic_batching.default_priority_level = DEFAULT_PRIORITY
    described.parameters["sha256"].string_value = model.digest
    return described


def statistics_of(model: ModelReplica, seen: Statistics) -> Any:
    """ModelStatistics. Copies to and from the device are part of compute_infer."""
    return messages.ModelStatistics(
        name=model.name,
        version=str(model.version),
        last_inference=seen.last_request_unix_ms,
        inference_count=seen.rows,
        execution_count=seen.batches,
        inference_stats=messages.InferStatistics(
            success=_duration(seen.success),
            fail=_duration(seen.fail),
            queue=_duration(seen.queue),
            compute_infer=_duration(seen.compute),
        ),
        batch_stats=[
            messages.InferBatchStatistics(batch_size=size, compute_infer=_duration(spent))
            for size, spent in sorted(seen.by_batch_size.items())
        ],
    )


def index_of(entries: Iterable[IndexEntry]) -> Any:
    """RepositoryIndexResponse."""
    return messages.RepositoryIndexResponse(
        models=[
            messages.RepositoryIndexResponse.ModelIndex(
                name=each.name, version=str(each.version), state=each.state, reason=each.reason
            )
            for each in entries
        ]
    )


def _tensors(specs: Mapping[str, TensorSpec]) -> list[Any]:
    return [
        messages.ModelMetadataResponse.TensorMetadata(
            name=name, datatype=spec.dtype, shape=_dims(spec, without_batch=False)
        )
        for name, spec in specs.items()
    ]


def _dims(spec: TensorSpec, without_batch: bool) -> list[int]:
    has_batch = without_batch and spec.shape[:1] == (BATCH,)
    shape = spec.shape[1:] if has_batch else spec.shape
    return [dim if isinstance(dim, int) else -1 for dim in shape]


def _type(spec: TensorSpec) -> int:
    name = _TYPE_NAMES.get(spec.dtype, f"TYPE_{spec.dtype}")
    return int(config.DataType.Value(name))


def _duration(duration: Duration) -> Any:
    return messages.StatisticDuration(count=duration.count, ns=duration.ns)
