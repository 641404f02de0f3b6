"""``braid demo``: the main job from end to end, on a server and a store of its own.

    export two networks ──> braid serve ──> register, with progress ──> infer ──> compare with
    ONNX Runtime ──> one schedule as text ──> table: what serves, beside the others ──> SIGTERM

SqueezeNet's operators keep both cores busy one after the other; a classifier and a detector over
one image leave a planner something to do.

Everything it makes lies in one temporary folder and one child process; both are gone when it
returns, also after Ctrl-C or a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from braid.core.allowance import cpu_allowance
from braid.core.child_process import python_command, python_environment
from braid.core.errors import BraidError
from braid.core.measurement import rival_text
from braid.core.schedule import PARALLEL, SEQUENTIAL
from braid.server.cli.connection import Subparsers
from braid.server.cli.progress import JobProgress
from braid.server.cli.remote.infer import random_array
from braid.server.cli.remote.schedule import print_schedule
from braid.server.cli.text import duration_text, latency_text, print_table, size_text, summary_speed
from braid_client import Client, JobFailed, JobState, ScheduleSummary

OFFERED = ("squeezenet", "classifier_and_detector", "inception_v3")
NETWORKS = OFFERED[:2]
EXPORT = "braid.server.cli.local.demo_networks"  # in a process of its own, as it loads torch
SHOWN = "classifier_and_detector"
TOLERANCE = 1e-4  # relative to the largest output
START_SECONDS, STOP_SECONDS = 60.0, 30.0
READY = re.compile(r" ready .*grpc=(?P<grpc>\S+) http=(?P<http>\S+)")  # in the server's log


class DemoFailed(BraidError):
    """A step of the demo failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one network."""

    name: str
    error: float  # largest difference from ONNX Runtime, relative to the largest output
    plan: ScheduleSummary


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "demo", help="schedule and serve two networks on a temporary server"
    )
    parser.add_argument(
        "--networks",
        metavar="NAME,NAME,...",
        type=lambda text: tuple(text.split(",")),
        default=NETWORKS,
        help=f"of {', '.join(OFFERED)} (default: {','.join(NETWORKS)})",
    )


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:  # as under ``nohup``
                stack.callback(signal.signal, number, before)
                signal.signal(number, _as_interrupt)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-demo-")))
        _heading("Exporting the networks as ONNX, starting a server")
        command = python_command(EXPORT, *args.networks, "--out", str(folder))
        with _child(command) as export:
            server = stack.enter_context(_serving(folder))
            _finish(export)
        client = stack.enter_context(Client(server))
        outcomes = [_try_network(client, name, folder / f"{name}.onnx") for name in args.networks]
        shown = SHOWN if SHOWN in args.networks else args.networks[0]
        _heading(f"The schedule of {shown}")
        print_schedule(shown, *client.schedule(shown))
        _heading("What serves, beside the others, measured in the same run")
        _print_outcomes(outcomes)
        _heading("Stopping the server")
    print(f"done in {time.monotonic() - started:.0f} s")
    return 0


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


@contextmanager
def _child(command: Sequence[str], log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process; end it by SIGTERM, or by SIGKILL after STOP_SECONDS."""
    with ExitStack() as stack:
        output = subprocess.DEVNULL if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            command,
            env=python_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we pass on what is to be passed on
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """Run a server on free ports with a store in ``folder``; yield its gRPC address.

    The address is read from the log of this server's process: on a port guessed to be free,
    another server could answer, and the demo would change its models.
    """
    log = folder / "server.log"
    flags = {
        "--store": str(folder / "store"),
        "--host": "127.0.0.1",
        "--grpc-port": "0",
        "--http-port": "0",
        "--log-level": "INFO",
        "--log-format": "text",
    }
    parts = (part for flag in flags.items() for part in flag)
    command = python_command("braid.server.cli.main", "serve", *parts)
    with _child(command, log) as process:
        try:
            address, http = _await_ready(log, process)
            print(f"serving on {address}, metrics on http://{http}/metrics", flush=True)
            yield address
        except Exception:
            print(f"-- last lines of the server's log:\n{_tail(log)}", file=sys.stderr)
            raise
    if process.returncode != 0:
        raise DemoFailed(f"the server ended with exit code {process.returncode}")


def _await_ready(log: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Wait until the server says that it is ready; return its gRPC and its HTTP address.

    Raises:
        DemoFailed: it ended, or took longer than START_SECONDS.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if ready := READY.search(log.read_text(errors="replace")):
            return ready["grpc"], ready["http"]
        if process.poll() is not None:
            raise DemoFailed(f"the server ended at once, exit code {process.returncode}")
        time.sleep(0.1)
    raise DemoFailed(f"the server was not ready after {START_SECONDS:.0f} s")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def _finish(process: subprocess.Popen[bytes]) -> None:
    _, complaint = process.communicate()
    if process.returncode != 0:
        last = (complaint or b"").decode(errors="replace").strip().rpartition("\n")[2]
        reason = last or f"exit code {process.returncode}"
        raise DemoFailed(f"exporting the networks failed: {reason}")


def _try_network(client: Client, name: str, path: Path) -> Outcome:
    _heading(f"Registering {name}, {size_text(path.stat().st_size)}")
    with JobProgress() as progress:
        job = client.register(name, path, batch_sizes=[1], on_upload=progress.upload)
        for state in client.watch_job(job.id):
            job = state
            progress.show(job)
    if job.state is not JobState.READY:  # the demo is about schedules
        raise JobFailed(job)
    model = client.model(name)
    random = np.random.default_rng(0)
    inputs = {spec.name: random_array(spec, None, random) for spec in model.inputs}
    result = client.infer(name, inputs)
    error = _relative_error(result.outputs, _reference(path, inputs))
    if not error <= TOLERANCE:
        raise DemoFailed(f"{name} differs from ONNX Runtime by {error:.1e} of its largest output")
    timing = result.timing
    print(
        f"answered in {duration_text(timing.total_us)} ({duration_text(timing.compute_us)} on the "
        f"device) with plan {result.plan_id}; differs from ONNX Runtime by at most {error:.1e} of "
        "the largest output"
    )
    return Outcome(name, error, next(plan for plan in model.schedules if plan.batch_size == 1))


def _reference(path: Path, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = cpu_allowance().threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _relative_error(ours: dict[str, NDArray[Any]], theirs: dict[str, NDArray[Any]]) -> float:
    if set(ours) != set(theirs):
        raise DemoFailed(f"the outputs are {sorted(ours)}, ONNX Runtime has {sorted(theirs)}")
    return max(
        float(np.abs(ours[name] - theirs[name]).max() / np.abs(theirs[name]).max())
        for name in theirs
    )


def _print_outcomes(outcomes: Sequence[Outcome]) -> None:
    numbers = ("latency (spread)", "one by one (spread)", "speed-up")
    rival = "beside the best other runtime"
    print_table(
        ("network", "serves", *numbers, rival, "error"),
        (
            (
                outcome.name,
                _serves(outcome.plan),
                latency_text(outcome.plan.measured_us, outcome.plan.spread),
                latency_text(outcome.plan.sequential_us, outcome.plan.sequential_spread),
                summary_speed(outcome.plan),
                rival_text(outcome.plan.best_other_ratio, outcome.plan.best_other),
                f"{outcome.error:.1e}",
            )
            for outcome in outcomes
        ),
        right=(*numbers, rival, "error"),
    )
    print(
        "speed-up: over Braid's own operators one by one. A schedule serves only where it was "
        "measured to be faster"
    )
    if any(outcome.plan.provisional for outcome in outcomes):
        print(
            "provisional: other processes had the cores; on a quiet machine it may look different"
        )


def _serves(plan: ScheduleSummary) -> str:
    """Return what serves: operators one by one, a planner's schedule, or another runtime."""
    kind = plan.plan_id.rpartition("-")[0] if plan.promoted else SEQUENTIAL
    text = plan.planner if kind == PARALLEL else kind
    return f"{text}, provisional" if plan.provisional else text
