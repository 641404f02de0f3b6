"""Whether a device computes more with runs side by side on parts of its threads, and how.

What is measured is stored with the schedule also where it does not pay, so that it is shown. Short
networks are not measured: what the front end takes for a request counts more there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from braid.compiler.device import Device
from braid.compiler.retries import RetryWhileRestarting
from braid.core.errors import DeviceOutOfMemory, WorkerFault
from braid.core.measurement import SideBySideRuns
from braid.core.program import PlanToRun, ProgramKey
from braid.core.schedule import Schedule
from braid.core.sign_test import sign_test_interval
from braid.engine.link.messages import CompareThroughput

log = logging.getLogger("braid.jobs")

# Latency of the shortest network that is tried. Two at once, a MatMul of 36 us lost 7 to 9 % from
# 16 callers (2-core AMD EPYC, 2026-11-29). Where between that and a millisecond is not measured.
SHORTEST_US = 300.0


async def with_side_by_side(
    schedule: Schedule,
    program: ProgramKey,
    device: Device,
    retry: RetryWhileRestarting,
    *,
    runtimes: Sequence[str],
) -> Schedule:
    """Add to a promoted schedule how runs side by side fare beside its plan.

    ``runtimes`` may run the whole model there, as the sequential plan may.
    """
    provenance = schedule.provenance
    if not provenance.promoted or provenance.tolerance is None:
        return schedule
    if provenance.measured_us is not None and provenance.measured_us < SHORTEST_US:
        return schedule
    tolerance = provenance.tolerance
    to_run = PlanToRun(program, schedule.plan, runtime=schedule.runtime)
    try:
        request = CompareThroughput(program, to_run, ("", *runtimes), tolerance)
        measured = (await retry(lambda: device.ask(request))).ways
    except (DeviceOutOfMemory, WorkerFault) as error:  # the plan serves without it
        log.warning("runs side by side are not measured", extra={"reason": str(error)})
        return schedule
    ways = [
        SideBySideRuns(way.count, way.runtime, way.latency_us, gain)
        for way in measured
        if (gain := sign_test_interval(way.ratios)) is not None
    ]
    if not ways:
        return schedule
    best = max(ways, key=lambda way: way.gain.median)
    return replace(schedule, provenance=replace(provenance, side_by_side=best))
