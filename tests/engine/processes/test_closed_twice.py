"""No descriptor of a child is closed twice: the second time it may be another thread's file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.closed_twice import ClosedTwice

PROGRAM = """
import asyncio, sys, uvloop
from braid.engine.importer.host.launch import importer_process
from braid.engine.link.options import WorkerOptions
from braid.engine.link.shared_memory import Arena
from braid.engine.link.worker_process import WorkerProcess

async def importer():
    async with importer_process():
        pass

async def killed_importer():
    async with importer_process() as (child, link):
        child.kill()
        assert await link.reader.read() == b""

async def cancelled_importer():
    for turns in range(12):
        starting = asyncio.ensure_future(importer())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            await starting
        except asyncio.CancelledError:
            pass

async def worker():
    arena = Arena(1 << 16)
    options = WorkerOptions(1, 1 << 16, 0, 1, module="tests.engine.link.mute_worker")
    await (await WorkerProcess.start(options, arena)).end()
    arena.close()
    arena.close()

loop = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[1]]
with asyncio.Runner(loop_factory=loop) as runner:
    for call in (importer, killed_importer, cancelled_importer, worker):
        runner.run(call())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_child_s_descriptors_are_closed_once(tmp_path: Path, loop: str) -> None:
    closed = ClosedTwice(tmp_path)

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, loop], cwd=ROOT, env={**os.environ, **closed.environment}
    )

    assert process.wait(timeout=120) == 0
    assert closed.of(process.pid) == []
