"""Load for some minutes on a server that leaks on purpose, then on the server."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from campaigns.registrations import Registrations
from campaigns.soak.samples import EVERY_S, Latencies, Samples, Series
from campaigns.soak.slopes import medians, slope
from campaigns.traffic import Asker, Question, Traffic, put, questions
from tests.models.graphs import graph, save, tensors
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess

WARM_UP = 0.3
"""Part of a run that is left out: what is asked first is loaded, compiled and cached."""

LEAST_LOOKS = 10
"""At processes, however long these take: a slope with an interval needs five after the warm-up."""

LEAKING = (sys.executable, "-m", "campaigns.soak.leaking")
STRETCHES = 60  # of time, each with a p50 and a p99
SIZES = ((2, 8), (3, 16), (4, 24))
"""Of the models that are registered: few, as kernels of each new size are kept for the next model
that has it (oneDNN keeps 1,024), and what is kept is no leak."""

SHAPES = 200  # of the model with an open extent: more than are kept ready


class Mixed(Traffic):
    """Clients that ask several models, and one of them at ever new shapes."""

    def __init__(self, address: str, folder: Path, options: argparse.Namespace) -> None:
        self.latencies = Latencies(60 * options.minutes / STRETCHES)
        asked = [
            question
            for name in ("small", "wide")
            for question in questions(name, folder / f"{name}.onnx")
        ]
        super().__init__(address, options.clients, asked, options.seed, options.pause_ms / 1000)

    def ask(self, asker: Asker, chance: random.Random) -> bool:
        """Put one question, and count how long a right answer took."""
        question = chance.choice((chance.choice(self._asked), _open(chance)))
        began = time.monotonic()
        is_right = put(asker, question, self.tally)
        if is_right:
            self.latencies.took(time.monotonic() - began)
        return is_right


def _open(chance: random.Random) -> Question:
    x = np.full((chance.randint(1, 4), chance.randint(1, SHAPES)), chance.random(), np.float32)
    return Question("open", x, x + x)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--control-minutes", type=float, default=2.0, help="of the leaking server")
    parser.add_argument("--leak", type=int, default=64 << 10, help="bytes a second, of the control")
    parser.add_argument("--limit", type=float, default=0.01, help="growth an hour, as a part")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=10.0, help="of a client between calls")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Soak the leaking control, which has to be caught, then the server."""
    control = soak(options, options.control_minutes, LEAKING)
    served = soak(options, options.minutes, BRAID)
    broken = [*served["leaks"], *served["broken"]]
    if not any(name.startswith("memory of front end") for name in control["leaks"]):
        broken.append("the leaking control was not caught")
    return {"control": control, "soak": served, "broken": broken}


def soak(options: argparse.Namespace, minutes: float, command: Sequence[str]) -> dict[str, Any]:
    """Load a server for some minutes; what was seen of it, ready for JSON."""
    with tempfile.TemporaryDirectory(prefix="braid-soak-") as name:
        folder = Path(name)
        server = ServerProcess(
            folder / "store",
            command=command,
            BRAID_LOG_LEVEL="INFO",
            LEAK_BYTES_A_SECOND=str(options.leak),
            LEAK_FILE=str(folder / "leak"),
        )
        server.start()
        try:
            _register(server, folder)
            mixed = Mixed(server.address, folder, options)
            registrations = Registrations(
                server.address, folder, options.seed, mixed.tally, [], most_kept=0, sizes=SIZES
            )
            (folder / "leak").touch()
            samples, until = Samples(server), time.monotonic() + 60 * minutes
            while time.monotonic() < until or samples.looks < LEAST_LOOKS:
                time.sleep(1)
                if server.process.poll() is not None:
                    break
            samples.stop()
            registrations.stop()
            mixed.stop()
            code = server.stop()
        finally:
            server.end()
    broken = [*mixed.tally.surprises, *registrations.lost, *([f"exit code {code}"] if code else [])]
    return {
        "minutes": minutes,
        "calls": dict(mixed.tally.outcomes),
        "jobs": dict(registrations.ended),
        **_slopes(samples, mixed.latencies, options.limit),
        "broken": broken,
    }


def _register(server: ServerProcess, folder: Path) -> None:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    shape = ["batch", "n"]
    save(graph([node], tensors(x=shape), tensors(y=shape)), folder / "open.onnx")
    small_cnn(folder / "small.onnx", branches=2, size=8)
    small_cnn(folder / "wide.onnx", branches=3, size=24)
    with server.client() as client:
        for name, shapes in (("open", {"x": [1, 8]}), ("small", None), ("wide", None)):
            client.register(
                name,
                folder / f"{name}.onnx",
                batch_sizes=[1, 4],
                input_shapes=shapes,
                planner="sequential",
                wait=True,
            )
        for branches, size in SIZES:  # what is kept for the next model of a size is kept now
            file = small_cnn(folder / "known.onnx", branches=branches, size=size)
            client.register("known", file, batch_sizes=[1, 4], wait=True)
            client.delete("known")


def _slopes(samples: Samples, latencies: Latencies, limit: float) -> dict[str, Any]:
    """Slopes after the warm-up of what lasted from the first look, and which of them are leaks.

    Importers do not last: each is for one upload, and what a new one has grows as it starts.
    """
    begun = min(series[0][0] for series in samples.memory.values())
    end = max(series[-1][0] for series in samples.memory.values())
    since = begun + WARM_UP * (end - begun)
    rows: dict[str, Any] = {}
    leaks = []
    for what in ("memory", "descriptors", "threads"):
        for (kind, pid), series in getattr(samples, what).items():
            if kind == "importer" or series[0][0] > begun + EVERY_S or series[-1][0] < end - 10:
                continue
            late = [(seconds, value) for seconds, value in series if seconds >= since]
            estimate, name = slope(late), f"{what} of {kind} {pid}"
            rows[name] = {
                "first": late[0][1],
                "last": late[-1][1],
                **estimate.row(),
                "medians": [round(value) for _, value in medians(series)],
            }
            if estimate.is_above(limit):
                leaks.append(name)
    return {"slopes": rows, "leaks": leaks, "latencies": _steadiness(latencies, since)}


def _steadiness(latencies: Latencies, since: float) -> dict[str, Any]:
    """Slopes of p50 and p99, for people: they also tell what else the machine did."""
    rows: dict[str, Any] = {}
    series: Series
    for name, series in (("p50", latencies.p50), ("p99", latencies.p99)):
        late = [(seconds, value) for seconds, value in series if seconds >= since]
        if late:
            first, last = (round(1000 * late[index][1], 2) for index in (0, -1))
            rows[name] = {"first ms": first, "last ms": last, **slope(late).row()}
    return rows
