"""Run it: ``python -m tests.soak --help``."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from benchmarks import environment
from tests.chaos.registrations import Registrations
from tests.chaos.traffic import BraidAsker, Question, Tally, TritonAsker, put, questions
from tests.child_processes import kill_children_at_exit
from tests.models.graphs import graph, save, tensors
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess
from tests.soak.samples import EVERY_S, Latencies, Samples, Series
from tests.soak.slopes import medians, slope

WARM_UP = 0.3
"""Part of a run that is left out: what is asked first is loaded, compiled and cached."""

LEAST_LOOKS = 10
"""At processes, however long these take: a slope with an interval needs five after the warm-up."""

LEAKING = (sys.executable, "-m", "tests.soak.leaking")
STRETCHES = 60  # of time, each with a p50 and a p99
SIZES = ((2, 8), (3, 16), (4, 24))
"""Of the models that are registered: few, as kernels of each new size are kept for the next model
that has it (oneDNN keeps 1,024), and what is kept is no leak."""

SHAPES = 200  # of the model with an open extent: more than are kept ready


class Mixed:
    """Clients that ask several models, and one of them at ever new shapes."""

    def __init__(self, address: str, folder: Path, options: argparse.Namespace) -> None:
        """Ask until told to stop."""
        self.tally, self.latencies = Tally(), Latencies(60 * options.minutes / STRETCHES)
        self._asked = [
            question
            for name in ("small", "wide")
            for question in questions(name, folder / f"{name}.onnx")
        ]
        self._pause_s, self._stop = options.pause_ms / 1000, threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, args=(address, f"{options.seed} {number}"))
            for number in range(options.clients)
        ]
        for thread in self._threads:
            thread.start()

    def _loop(self, address: str, seed: str) -> None:
        chance = random.Random(seed)
        asker = chance.choice((BraidAsker, TritonAsker))(address)
        while not self._stop.wait(self._pause_s):
            question = chance.choice((chance.choice(self._asked), _open(chance)))
            began = time.monotonic()
            if put(asker, question, self.tally):
                self.latencies.took(time.monotonic() - began)
        asker.close()

    def stop(self) -> None:
        """End all clients."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _open(chance: random.Random) -> Question:
    x = np.full((chance.randint(1, 4), chance.randint(1, SHAPES)), chance.random(), np.float32)
    return Question("open", x, x + x)


def main() -> int:
    """Run the control, then the soak; the exit status is 1 if anything is not as it should be."""
    kill_children_at_exit()
    options = _options()
    facts = environment.describe()
    control = soak(options, options.control_minutes, LEAKING)
    seen = soak(options, options.minutes, BRAID)
    caught = [name for name in control["leaks"] if name.startswith("memory of front end")]
    broken = [*seen["leaks"], *seen["broken"]]
    broken += [] if caught else ["the leaking control was not caught"]
    result = {
        "environment": facts,
        "minutes": options.minutes,
        "control": control,
        "soak": seen,
        "broken": broken,
    }
    print("\n".join(_table(result)))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if broken else 0


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
            found, name = slope(late), f"{what} of {kind} {pid}"
            rows[name] = {
                "first": late[0][1],
                "last": late[-1][1],
                **found.row(),
                "medians": [round(value) for _, value in medians(series)],
            }
            if found.is_above(limit):
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


def _table(result: dict[str, Any]) -> list[str]:
    """A result as lines of Markdown."""
    lines = ["| run | of | % an hour | interval (99 %) |", "|---|---|---|---|"]
    for run in ("control", "soak"):
        for name, row in {**result[run]["slopes"], **result[run]["latencies"]}.items():
            lines.append(
                f"| {run} | {name} | {row['% an hour']} | {row['at least']} to {row['at most']} |"
            )
        lines.append(f"| {run} | calls, jobs | {result[run]['calls']} | {result[run]['jobs']} |")
    return [*lines, f"broken: {result['broken'] or 'nothing'}"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--control-minutes", type=float, default=2.0, help="of the leaking server")
    parser.add_argument("--leak", type=int, default=64 << 10, help="bytes a second, of the control")
    parser.add_argument("--limit", type=float, default=0.01, help="growth an hour, as a part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=10.0, help="of a client between calls")
    parser.add_argument("--out", type=Path, help="write what was seen here, too (JSON)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
