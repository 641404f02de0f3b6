"""How a model computes on 8-bit integers: as an earlier schedule of it does, or measured.

So all batch sizes and devices of a model, and whoever has its schedules, make one graph.
Without samples there is none: ranges of made-up inputs would cut off real ones, and no error that
is measured on made-up inputs would show it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from braid.compiler.report import Calibrating
from braid.compiler.samples import check_samples
from braid.compiler.work import Work
from braid.core.errors import DeviceOutOfMemory, InvalidRequest, PreconditionFailed
from braid.core.precision import AUTO, FP32, INT8
from braid.core.quantisation import Quantisation
from braid.engine.link.messages import Calibrate

log = logging.getLogger("braid.jobs")


async def with_quantisation(work: Work) -> Work:
    """Add what INT8 needs, if that takes part; with precision auto it may be left out.

    Raises InvalidRequest: the model was registered in INT8, and cannot be calibrated.
    """
    precision = work.imported.options.precision
    if precision not in (AUTO, INT8) or INT8 not in work.device.precisions:
        return work
    try:
        quantisation = await work.cache.find_quantisation() or await _measured(work)
    except (InvalidRequest, PreconditionFailed, DeviceOutOfMemory) as error:
        if precision == INT8:
            raise
        log.info("a precision is left out", extra={"precision": INT8, "reason": str(error)})
        return replace(work, left_out={**work.left_out, INT8: str(error)})
    return replace(work, quantisation=quantisation)


async def _measured(work: Work) -> Quantisation:
    check_samples(INT8, given=bool(work.samples.path))
    program = work.imported.program(1, FP32)
    tolerance = work.tolerated_in(INT8) if work.is_auto else work.tolerated_error
    request = Calibrate(program, work.samples.path, tolerance)
    work.report(Calibrating(0.0))
    found = await work.retry(
        lambda: work.device.ask(request, lambda done: work.report(Calibrating(done)))
    )
    return found.how
