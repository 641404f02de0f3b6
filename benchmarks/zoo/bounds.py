"""How near what serves comes to the least time that its own units could take together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.work_bound import bound_of, measure
from braid.core.precision import FP32
from braid.engine.link.options import WorkerOptions
from braid.server.devices.device import Device

_GIB = 1 << 30


async def least_ms(file: Path, plan: Mapping[str, Any], store: Path, threads: int) -> float:
    """Return the bound of ``benchmarks.work_bound`` on the kernels of a plan, for one row.

    Args:
        file: as it was compiled into ``store``.
        plan: PlanFacts of that.
        store: the folder that ``braid.compile`` used.
        threads: of the device.
    """
    device = Device("cpu", WorkerOptions(threads, _GIB, 2 * _GIB, 7))
    await device.start()
    try:
        artefact = store / "compiled" / plan["digest"]
        graph, units = await measure(device, artefact, file, FP32, dict(plan["choices"]))
    finally:
        await device.close()
    return bound_of(graph, units, threads).least_us / 1e3
