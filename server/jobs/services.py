"""What registration jobs work with, and what they know of a model.

JobServices   the server's parts, one for all jobs
Imported   the artefact of one model, as far as the front end reads it
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from braid.core.errors import InvalidRequest
from braid.core.keyed_locks import KeyedLocks
from braid.core.precision import TOLERANCES
from braid.core.program import ProgramKey, static_content
from braid.core.schedule import ScheduleKey
from braid.core.tensor import BATCH, TensorSpec
from braid.engine.importer.host.report import Report, read_graph, read_report
from braid.server.jobs.interfaces import (
    ImportModel,
    JobObserver,
    Planner,
    PlanTarget,
    ServingDevice,
    Specs,
)
from braid.server.jobs.profiled_inputs import profiled_inputs
from braid.server.jobs.retries import RetryPauses
from braid.server.store.records import ModelVersion, RegistrationOptions
from braid.server.store.store import Store


@dataclass(frozen=True, slots=True)
class JobServices:
    """What registrations work with. One for all jobs of a server."""

    store: Store
    import_model: ImportModel
    devices: Sequence[ServingDevice]
    planner: Planner
    models: PlanTarget
    observer: JobObserver
    tolerance: float  # of outputs in FP32, relative to the largest element
    retry_pauses: RetryPauses = field(default_factory=RetryPauses)
    load_turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # weights are read one by one
    # Measuring needs the device for itself; held for one batch size, so jobs take turns.
    device_turns: Mapping[str, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    # By digest: a second job for the same bytes finds the artefact of the first.
    import_turns: KeyedLocks = field(default_factory=KeyedLocks)

    @asynccontextmanager
    async def keeping(self, digest: str) -> AsyncIterator[None]:
        """Surround a job: what it loads stays loaded, whichever other models end meanwhile."""
        async with AsyncExitStack() as kept:
            for device in self.devices:
                await kept.enter_async_context(device.keeping(digest))
            yield


@dataclass(frozen=True, slots=True)
class Imported:
    """What the front end knows of an artefact."""

    inputs: Mapping[str, TensorSpec]  # of the template: the batch and open extents are symbols
    report: Report


async def read_imported(model: ModelVersion, services: JobServices) -> Imported:
    """Read what the import of a model left."""
    artefact = services.store.folder.artefact(model.sha256)
    graph = await asyncio.to_thread(read_graph, artefact)
    return Imported(graph.inputs, await asyncio.to_thread(read_report, artefact))


def profiled(model: ModelVersion, imported: Imported, batch_size: int) -> Specs:
    """The static inputs that a batch size is measured at."""
    return profiled_inputs(imported.inputs, imported.report, model.options.input_shapes, batch_size)


def program_key(model: ModelVersion, imported: Imported, inputs: Specs) -> ProgramKey:
    """The program that a model is profiled as, for static ``inputs``, on its usual kernels."""
    static = static_content(imported.report.static_values, imported.inputs)
    return ProgramKey(model.sha256, tuple(inputs.items()), static, model.options.precision)


def check_offered(precision: str, devices: Sequence[ServingDevice]) -> None:
    """Raise InvalidRequest unless all ``devices`` can compute in ``precision``."""
    for device in devices:
        if precision not in device.precisions:
            raise InvalidRequest(
                f"device {device.name} computes in {', '.join(device.precisions)}, not in "
                f"{precision}; register the model in a precision that every device of this "
                "server offers"
            )


def tolerance_of(options: RegistrationOptions, services: JobServices) -> float:
    """How far outputs may be from the FP32 reference, relative to the largest element."""
    if options.accepted_error is not None:
        return options.accepted_error
    return TOLERANCES.get(options.precision, services.tolerance)


def schedule_key(
    model: ModelVersion, imported: Imported, device_key: str, inputs: Specs, batch_size: int
) -> ScheduleKey:
    """The key of a model's schedule for static ``inputs``.

    Raises:
        InvalidRequest: two inputs give one symbol different extents.
    """
    extents: dict[str, int] = {}
    for name, template in imported.inputs.items():
        for symbol, extent in zip(template.shape, inputs[name].shape, strict=True):
            if isinstance(symbol, str) and symbol != BATCH:
                assert isinstance(extent, int)
                if extents.setdefault(symbol, extent) != extent:
                    raise InvalidRequest(
                        f"input_shapes gives {symbol!r} as {extents[symbol]} and as {extent}"
                    )
    return ScheduleKey(
        model_digest=model.sha256,
        device_key=device_key,
        batch_size=batch_size,
        precision=model.options.precision,
        planner=model.options.planner.text,
        shapes=",".join(f"{symbol}={extents[symbol]}" for symbol in sorted(extents)),
        accepted_error=model.options.accepted_error,
    )
