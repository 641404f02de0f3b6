"""``braid demo``: the main job from end to end, on a server and a store of its own.

    export two networks ──> braid serve ──> register, with progress ──> what was found, as text
    ──> what serves, beside other engines, as ``braid benchmark`` measures it ──> SIGTERM

SqueezeNet's operators keep both cores busy one after the other; a classifier and a detector over
one image leave a planner something to do.

Everything it makes lies in one temporary folder and one child process; both are gone when it
returns, also after Ctrl-C or a failure.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from braid.core.child_process import python_command, python_environment
from braid.core.errors import BraidError
from braid.core.measurement import size_text
from braid.core.schedule import schedule_from_json
from braid.server.cli.connection import Subparsers
from braid.server.cli.local import benchmark
from braid.server.cli.progress import JobProgress
from braid.server.cli.remote.schedule import schedule_lines
from braid.server.cli.text import say
from braid_client import Client, DeadlineExceeded, FailedPrecondition, JobFailed, JobState

NETWORKS = ("squeezenet", "classifier_and_detector")
SEARCH_SECONDS = 90.0  # of all networks; where other processes have the cores a search takes longer
EXPORT = "braid.server.cli.local.demo_networks"  # in a process of its own, as it loads onnx
START_SECONDS, STOP_SECONDS = 60.0, 30.0
READY = re.compile(r" ready .*grpc=(?P<grpc>\S+) http=(?P<http>\S+)")  # in the server's log


class DemoFailed(BraidError):
    """A step of the demo failed."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "demo", help="schedule and serve two networks on a temporary server"
    )
    parser.add_argument(
        "--networks",
        metavar="NAME,NAME,...",
        type=_names,
        default=NETWORKS,
        help=f"of {', '.join(NETWORKS)} (default: both)",
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(NETWORKS):
        raise argparse.ArgumentTypeError(f"{text!r}: give some of {', '.join(NETWORKS)}")
    return names


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if (before := signal.getsignal(number)) is not signal.SIG_IGN:  # as under ``nohup``
                stack.callback(signal.signal, number, before)
                signal.signal(number, _as_interrupt)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-demo-")))
        _heading("Exporting the networks as ONNX, starting a server")
        command = python_command(EXPORT, str(folder), *args.networks)
        with _child(command) as export:
            server = stack.enter_context(_serving(folder))
            _finish(export, "exporting the networks")
        client = stack.enter_context(Client(server))
        names = args.networks
        found = [_register(client, name, folder, SEARCH_SECONDS / len(names)) for name in names]
        for name, is_found in zip(names, found, strict=True):
            if is_found:
                _heading(f"The schedule of {name}")
                for line in schedule_lines(name, schedule_from_json(client.schedule(name)[0])):
                    say(line)
        for name in names:
            _heading(f"What serves {name}, beside other engines")
            _compare(server, name, folder / f"{name}.onnx")
        _heading("Stopping the server")
    print(f"done in {time.monotonic() - started:.0f} s")
    return 0


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _compare(server: str, name: str, file: Path) -> None:
    connection = dict.fromkeys(("token_file", "tls_ca", "tls_cert", "tls_key"))
    figures = {"clients": (1,), "seconds": 2.0, "input_shape": (), "seed": 0, "json": False}
    of = {"address": server, "name": name, "version": None, "file": file}
    benchmark.run(argparse.Namespace(**connection, **figures, **of))


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
            last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            print(f"-- last lines of the server's log:\n{last}", file=sys.stderr)
            raise
    if process.returncode != 0:
        raise DemoFailed(f"the server ended with exit code {process.returncode}")


def _await_ready(log: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Wait until the server is ready; return its gRPC and its HTTP address, or DemoFailed."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if ready := READY.search(log.read_text(errors="replace")):
            return ready["grpc"], ready["http"]
        if process.poll() is not None:
            raise DemoFailed(f"the server ended at once, exit code {process.returncode}")
        time.sleep(0.1)
    raise DemoFailed(f"the server was not ready after {START_SECONDS:.0f} s")


def _finish(process: subprocess.Popen[bytes], what: str) -> None:
    _, complaint = process.communicate()
    if process.returncode != 0:
        last = (complaint or b"").decode(errors="replace").strip().rpartition("\n")[2]
        reason = last or f"exit code {process.returncode}"
        raise DemoFailed(f"{what} failed: {reason}")


def _register(client: Client, name: str, folder: Path, seconds: float) -> bool:
    """Register a network; returns whether its schedule was found in time.

    A search that takes longer ends, and what it found so far serves.
    """
    path = folder / f"{name}.onnx"
    _heading(f"Registering {name}, {size_text(path.stat().st_size)}")
    with JobProgress() as progress:
        job = client.register(name, path, batch_sizes=[1], on_upload=progress.upload)
        try:
            for state in client.watch_job(job.id, timeout_s=seconds):
                job = state
                progress.show(job)
        except DeadlineExceeded:
            with suppress(FailedPrecondition):  # it ended just now
                client.cancel_job(job.id)
            say(
                "the search for plans was cut short, as other processes have the cores; on a quiet "
                "machine it looks different"
            )
            return False
    if job.state is not JobState.READY:  # the demo is about schedules
        raise JobFailed(job)
    return True
