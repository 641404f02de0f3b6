"""How a model computes on 8-bit integers: of an earlier schedule of the registration, or measured.

    a batch size, a device ──schedule stored?──> its quantisation
              └──none──> Measurer.calibrate, one row at a time ──> stored with the schedule

So all batch sizes and devices of a registration, and whoever has its schedules, make one graph.
Without samples there is none: ranges of made-up inputs would cut off real ones, and no error that
is measured on made-up inputs would show it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from braid.core.errors import DeviceOutOfMemory, InvalidRequest, PreconditionFailed
from braid.core.precision import AUTO, FP32, INT8
from braid.core.quantisation import Quantisation
from braid.server.jobs.scheduling.plan_search import Work
from braid.server.jobs.services import check_samples

log = logging.getLogger("braid.jobs")


async def with_quantisation(work: Work) -> Work:
    """Add what INT8 needs, if that takes part; with precision auto it may be left out.

    Raises:
        InvalidRequest: the model was registered in INT8, and cannot be calibrated.
    """
    asked = work.imported.model.options.precision
    if asked not in (AUTO, INT8) or INT8 not in work.device.precisions:
        return work
    try:
        found = await _stored(work) or await _measured(work)
    except (InvalidRequest, PreconditionFailed, DeviceOutOfMemory) as error:
        if asked == INT8:
            raise
        log.info("a precision is left out", extra={"precision": INT8, "reason": str(error)})
        return replace(work, left_out={INT8: str(error)})
    return replace(work, quantisation=found)


async def _stored(work: Work) -> Quantisation | None:
    """Quantisation of any schedule of the same registration."""
    store = work.services.store
    for device in work.services.devices:
        for batch_size in work.imported.batch_sizes:
            key = work.imported.schedule_key(device.device_key, batch_size)
            schedule = await store.call(store.find_schedule, key.id)
            if schedule is not None and schedule.provenance.quantisation is not None:
                return schedule.provenance.quantisation
    return None


async def _measured(work: Work) -> Quantisation:
    """Calibrate on the samples, one row at a time."""
    check_samples(INT8, given=bool(work.samples.path))
    program = work.imported.program(1, FP32)
    options = work.imported.model.options
    tolerance = (
        work.services.tolerated_in(INT8, options)
        if work.is_auto
        else work.services.tolerated_error(options)
    )
    work.progress.calibrating(0.0)
    return await work.retry(
        lambda: work.device.bench.calibrate(
            program,
            samples=work.samples.path,
            tolerance=tolerance,
            on_progress=work.progress.calibrating,
        )
    )
