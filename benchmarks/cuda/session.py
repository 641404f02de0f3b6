"""A session with a GPU, in four parts of 23 minutes in all.

    python -m benchmarks.cuda.session A

    A  versions, the tests, SqueezeNet                                          5 minutes
    B  the five CNNs at batch 1                                                 7
    C  the CNNs in TF32, then max-autotune on three of them, going on from B    8
    D  the service                                                              3

A part writes into ``--out``/PART: ``log``, ``cuda.json``, ``cuda.svg`` and ``cuda_plans.json``,
each as soon as there is something, so that it may be cut off. A step that is not over in its time,
and what earlier ones left of theirs, is stopped with all that it started.
Networks come from ``--models`` (``benchmarks.cuda.prepare``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from benchmarks.cuda.agenda import EAGER, MAX_AUTOTUNE, REDUCE_OVERHEAD
from benchmarks.cuda.versions import NO_GPU
from benchmarks.peers.hosting import keeper
from benchmarks.reports import parser_of

MARGIN_S = 15.0
"""For a benchmark or pytest to end by itself, with the step or test that it is at."""

AUTOTUNED = "squeezenet,googlenet,inception_v3"

_TAIL = 40
"""Lines of a step's output that are shown; all are in the log."""


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one part."""

    out: Path  # of this part
    models: Path
    earlier: Path | None  # cuda.json of the part before


Arguments = Callable[[Places, float], Sequence[str]]
"""Of python, for a step that has this many seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command with the seconds that are set aside for it."""

    name: str
    seconds: float
    arguments: Arguments


def _versions(_: Places, __: float) -> Sequence[str]:
    return ["-m", "benchmarks.cuda.versions"]


ENGINE_TESTS = (
    "tests/engine/cuda/test_on_gpu.py",
    "tests/engine/cuda/kernels/test_on_gpu.py",
    "tests/engine/cuda/kernels/test_networks.py",
)
"""The driver's first, without which nothing else works; those of whole networks take longest."""

SERVICE_TESTS = ("tests/service/test_gpu_service.py",)


def _tests(files: Sequence[str], longest_s: int) -> Arguments:
    """Tests until eight have failed; at the end of its time pytest says which, as it would else."""
    options = ["-W", "default", "-v", "--tb", "short", "-p", "no:cacheprovider"]
    options += ["--maxfail", "8", "--timeout", str(longest_s), "-m", "gpu", *files]

    def arguments(_: Places, seconds: float) -> Sequence[str]:
        limit_s = max(10.0, seconds - MARGIN_S)
        return ["-m", "pytest", f"--session-timeout={limit_s:.0f}", *options]

    return arguments


def _benchmark(
    *options: str, without: Sequence[str], subfolder: str = "", goes_on: bool = False
) -> Arguments:
    def arguments(places: Places, seconds: float) -> Sequence[str]:
        minutes = max(0.5, (seconds - MARGIN_S) / 60)
        earlier = ["--earlier", str(places.earlier)] if goes_on and places.earlier else []
        return [
            *("-m", "benchmarks.engine", "--device", "cuda", "--batches", "1", *options),
            *("--without", ",".join(without), "--minutes", f"{minutes:.2f}", *earlier),
            *("--models", str(places.models), "--out", str(places.out / subfolder)),
        ]

    return arguments


_CNNS = ("--networks", "squeezenet,googlenet,inception_v3,randwire,nasnet_large")

PARTS: Mapping[str, Sequence[Step]] = {
    "A": (
        Step("versions", 15, _versions),
        Step("tests", 160, _tests(ENGINE_TESTS, 60)),
        Step("squeezenet", 110, _benchmark("--networks", "squeezenet", without=[MAX_AUTOTUNE])),
    ),
    "B": (
        Step("versions", 15, _versions),
        Step("five networks", 405, _benchmark(*_CNNS, without=[MAX_AUTOTUNE], goes_on=True)),
    ),
    "C": (
        Step("versions", 15, _versions),
        Step(
            "tf32",
            145,
            _benchmark(
                *(*_CNNS, "--precision", "tf32"),
                without=[EAGER, REDUCE_OVERHEAD, MAX_AUTOTUNE],
                subfolder="tf32",
            ),
        ),
        Step("max-autotune", 320, _benchmark("--networks", AUTOTUNED, without=[], goes_on=True)),
    ),
    "D": (
        Step("versions", 15, _versions),
        Step("service", 175, _tests(SERVICE_TESTS, 140)),
    ),
}


def minutes(part: str) -> float:
    """What a part takes at most, but for the end of a step that had to be stopped."""
    return sum(step.seconds for step in PARTS[part]) / 60


def run(steps: Sequence[Step], places: Places, scale: float = 1.0) -> dict[str, str]:
    """Run steps one after the other; how each ended. Without a GPU only the first one."""
    places.out.mkdir(parents=True, exist_ok=True)
    log = places.out / "log"
    ended: dict[str, str] = {}
    deadline = monotonic()
    for step in steps:
        deadline += step.seconds * scale
        began = log.stat().st_size if log.exists() else 0
        status, seconds = _run(step.arguments(places, deadline - monotonic()), log, deadline)
        print(*_lines(log, began)[-_TAIL:], sep="\n")
        if status == NO_GPU and step.arguments is _versions:
            return ended
        how = "over" if status == 0 else "stopped" if status is None else f"status {status}"
        ended[step.name] = how
        print(f"== {step.name}: {how} after {seconds:.0f} s\n", flush=True)
    return ended


def _run(arguments: Sequence[str], log: Path, deadline: float) -> tuple[int | None, float]:
    """Exit status and seconds of a python process; None if it was stopped at the deadline."""
    began = monotonic()
    command = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid())]
    command += [sys.executable, "-u", *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        status: int | None = process.wait(max(1.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        status = None
    finally:
        process.terminate()
        process.wait()
    return status, monotonic() - began


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part; 0 if all its steps ended well, or there is no GPU."""
    parser = parser_of("benchmarks.cuda.session", __doc__)
    parser.add_argument("part", choices=PARTS)
    out = os.environ.get("OUT", "benchmarks/results/local")
    parser.add_argument("--out", type=Path, default=Path(out), help="default: $OUT")
    parser.add_argument("--models", type=Path, default=Path("build/gpu-networks"))
    parser.add_argument("--earlier", type=Path, help="cuda.json that B or C goes on from")
    parser.add_argument("--minutes", type=float, help="in place of those above")
    options = parser.parse_args(arguments)
    earlier: Path | None = options.earlier or _before(options.part, options.out)
    if earlier is not None and not earlier.exists():
        parser.error(f"--earlier: there is no {earlier}")
    places = Places(options.out / options.part, options.models, earlier)
    scale = (options.minutes or minutes(options.part)) / minutes(options.part)
    ended = run(PARTS[options.part], places, scale)
    return 0 if all(how == "over" for how in ended.values()) else 1


def _before(part: str, out: Path) -> Path | None:
    """What the part before left in the same folder."""
    path = out / chr(ord(part) - 1) / "cuda.json"
    return path if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
