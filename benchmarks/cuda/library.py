"""The networks as artefacts: by their recipes where there are any, else written and imported.

A benchmark has them made in the background while the device is busy.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cuda.recipes import recipe_folder
from benchmarks.planned import imported

AT_ONCE = 3


async def artefact_of(name: str, folder: Path) -> Path:
    """The artefact of a network in ``folder``, made there unless it exists.

    Raises:
        RuntimeError: it could not be made; with the last line of what was printed.
        BraidError: it could not be imported.
    """
    artefact, model = folder / name, folder / f"{name}.onnx"
    if artefact.exists():
        return artefact
    if recipe_folder(name, folder).exists():
        try:
            await _run("benchmarks.cuda.recipes", name, str(folder))
        except RuntimeError as error:
            print(f"{name} is exported and imported: {error}", file=sys.stderr)
        else:
            return artefact
    if not model.exists():
        await _run("benchmarks.networks.export", name, "--out", str(folder))
    return await imported(model, artefact)


class Library:
    """Networks in one folder; those that are there already are taken as they are."""

    def __init__(self, folder: Path, networks: Sequence[str]) -> None:
        """Begin with the first ones; to be called in the event loop."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._tasks = {name: asyncio.create_task(self._in_turn(name)) for name in networks}

    async def network(self, name: str) -> Path:
        """The artefact of one network, when it is ready; raises what ``artefact_of`` does."""
        return await asyncio.shield(self._tasks[name])

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _in_turn(self, name: str) -> Path:
        async with self._turns:
            return await artefact_of(name, self._folder)


async def _run(module: str, *arguments: str) -> None:
    """In a process without the GPU, and with few threads: others measure meanwhile."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
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
