"""A server over fakes that stops forever at a chosen point, to be killed there.

    python -m tests.server.jobs.crashing_server STORE LOG POINT

Appends a line to LOG for each measurement made; prints "there" when it has come to POINT.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from braid.core.measurement import StageLatency
from braid.core.program import ProgramKey
from braid.core.schedule import Stage
from tests.server.jobs.fakes import FakeDevice, Server

SIZES = (1, 4)


def log_measurements(device: FakeDevice, log: Path) -> None:
    """Let a device write down every measurement that is about to be answered."""
    original = device.measure_stage

    async def measure_stage(program: ProgramKey, stage: Stage) -> StageLatency:
        timing = await original(program, stage)
        with log.open("a") as file:
            file.write(f"{program.specs['x'].shape[0]} {stage.groups}\n")
        return timing

    device.measure_stage = measure_stage  # type: ignore[method-assign]


async def run(root: Path, log: Path, point: str) -> None:
    server = Server(root)

    async def stop_here() -> None:
        print("there", flush=True)
        await asyncio.sleep(3600)

    if point == "importing":
        server.importer.gate = asyncio.Event()
    elif point.startswith("measuring"):
        left = int(point.split("-")[1])

        def count_down(_: Stage) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                server.device.gate = asyncio.Event()
                print("there", flush=True)

        server.device.before_measuring = count_down
    elif point == "searching":
        server.planner.before_planning = stop_here
    elif point == "comparing":
        server.device.before_comparing = stop_here
    log_measurements(server.device, log)
    await server.runner.start()
    await server.register(sizes=SIZES)
    if point == "importing":
        await asyncio.sleep(0.2)
        await stop_here()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
