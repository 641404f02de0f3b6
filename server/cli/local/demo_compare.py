"""Latency of networks of the demo as Braid serves them, and in other engines: all in turns.

``python -P -m braid.server.cli.local.demo_compare SERVER FOLDER NAME...`` reads
``FOLDER/NAME.onnx`` and writes ``FOLDER/compared.json``. Braid's time is that on its device,
without gRPC, as the others run in this process; all have as many threads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from braid.core.allowance import cpu_allowance
from braid.core.runtimes import ONNXRUNTIME, RUNTIMES
from braid.engine.cpu.engines import installed_engines
from braid.engine.program.engines import EnginePlace
from braid.server.cli.local.demo_networks import NETWORKS
from braid_client import Client

MOST_ROUNDS, ROUNDS_SECONDS = 10, 10.0  # of one network; there is one round at least
TURN_RUNS, TURN_SECONDS = 10, 0.3  # in one round; there is one run at least
WAITS = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, and in wait for one


def main(server: str, folder: Path, names: list[str]) -> None:
    with Client(server) as client:
        found = {name: _compared(client, name, folder / f"{name}.onnx") for name in names}
    (folder / "compared.json").write_text(json.dumps(found))


def _compared(client: Client, name: str, file: Path) -> dict[str, Any]:
    """Medians in microseconds, largest error beside ONNX Runtime, rounds, part of time waited."""
    network, threads = NETWORKS[name], cpu_allowance().threads
    torch.set_num_threads(threads)
    module, image = network.build(), network.image(1)
    inputs, arrays = {"image": image}, {"image": image.numpy()}
    place = EnginePlace(threads)
    wholes = {key: engine.compile(file, place) for key, engine in installed_engines().items()}
    ours, theirs = client.infer(name, arrays).outputs, wholes[ONNXRUNTIME].run(inputs)
    errors = [
        float((torch.tensor(ours[key]) - of).abs().max() / of.abs().max())
        for key, of in theirs.items()
    ]
    runs: dict[str, Callable[[], float]] = {
        "Braid": lambda: client.infer(name, arrays).timing.compute_us,
        **{RUNTIMES[key]: partial(_timed_us, whole.run, inputs) for key, whole in wholes.items()},
        "PyTorch": partial(_timed_us, module, image),
    }
    with torch.inference_mode():
        samples, rounds, waited = _in_turns(runs)
    medians = {engine: median(of_engine) for engine, of_engine in samples.items()}
    return {"median_us": medians, "error": max(errors), "rounds": rounds, "waited": waited}


def _in_turns(
    runs: dict[str, Callable[[], float]],
) -> tuple[dict[str, list[float]], int, float]:
    """Samples in microseconds, rounds, and the part of the time in which this thread waited."""
    samples: dict[str, list[float]] = {engine: [] for engine in runs}
    began, before_ns, rounds = time.monotonic(), _waited_ns(), 0
    while rounds < MOST_ROUNDS and (not rounds or time.monotonic() < began + ROUNDS_SECONDS):
        rounds += 1
        for engine, run in runs.items():
            run()  # after the others its data is in no cache
            ends = time.monotonic() + TURN_SECONDS
            for number in range(TURN_RUNS):
                if number and time.monotonic() > ends:
                    break
                samples[engine].append(run())
    spent_ns = (time.monotonic() - began) * 1e9
    return samples, rounds, (_waited_ns() - before_ns) / spent_ns


def _timed_us(run: Callable[..., object], *inputs: object) -> float:
    began = time.perf_counter()
    run(*inputs)
    return (time.perf_counter() - began) * 1e6


def _waited_ns() -> int:
    return int(WAITS.read_text().split()[1]) if WAITS.exists() else 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
