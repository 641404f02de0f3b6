"""The networks as files: written and imported in the background while the device is busy."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planned import imported

AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Written:
    """A network as ONNX, and as imported."""

    model: Path
    artefact: Path


class Library:
    """Networks in one folder; those that are there already are taken as they are."""

    def __init__(self, folder: Path, networks: Sequence[str]) -> None:
        """Begin with the first ones; to be called in the event loop."""
        self._folder = folder
        self._turns = asyncio.Semaphore(AT_ONCE)
        folder.mkdir(parents=True, exist_ok=True)
        self._tasks = {name: asyncio.create_task(self._written(name)) for name in networks}

    async def network(self, name: str) -> Written:
        """One network, when it is ready.

        Raises:
            RuntimeError: it could not be written; with the last line of what was printed.
            BraidError: it could not be imported.
        """
        return await asyncio.shield(self._tasks[name])

    async def close(self) -> None:
        """Stop what is under way."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _written(self, name: str) -> Written:
        async with self._turns:
            model = self._folder / f"{name}.onnx"
            if not model.exists():
                await _export(name, self._folder)
            return Written(model, await imported(model, self._folder / name))


async def _export(name: str, folder: Path) -> None:
    """In a process without the GPU, and with few threads: others measure meanwhile."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.networks.export", name, "--out", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "2"},
    )
    try:
        printed, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = printed.decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError("".join(last) or f"exit status {process.returncode}")
