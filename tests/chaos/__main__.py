"""Run it: ``python -m tests.chaos --help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environment
from tests.chaos.blows import FRONT_END, Blows
from tests.chaos.registrations import Registrations
from tests.chaos.traffic import Traffic, questions
from tests.child_processes import kill_children_at_exit
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess, free_port

CALM_S = 30.0
"""Without blows at the end: everything must be well again."""


def main() -> int:
    """Run the campaign; the exit status is 1 if anything was seen that must not be."""
    kill_children_at_exit()
    options = _options()
    with tempfile.TemporaryDirectory(prefix="braid-chaos-") as folder:
        seen = campaign(Path(folder), options)
    print(json.dumps(seen, indent=2))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(seen, indent=2) + "\n")
    return 1 if seen["broken"] else 0


def campaign(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Load, registrations and blows for some minutes, and what was seen of them."""
    server = ServerProcess(folder / "store", command=BRAID, BRAID_LOG_LEVEL="INFO")
    port = str(free_port())
    asked = []
    logs, leftovers = [_start(server, folder, port, 0)], 0
    try:
        with server.client() as client:
            for name, size in (("small", 16), ("wide", 48)):
                file = small_cnn(folder / f"{name}.onnx", branches=4, size=size)
                client.register(name, file, batch_sizes=[1, 4], wait=True)
                asked += questions(name, file)
        address = server.address
        pause_s = options.pause_ms / 1000
        traffic = Traffic(address, options.clients, asked, options.seed, pause_s)
        registrations = Registrations(address, folder, options.seed, traffic.tally)
        blows, began = Blows(options.seed), time.monotonic()
        while time.monotonic() < began + 60 * options.minutes:
            time.sleep(blows.pause_s(options.mean_seconds))
            children = server.children
            if blows.strike(server) == FRONT_END:
                leftovers += _still_there(children)
                logs.append(_start(server, folder, port, len(logs)))
        time.sleep(CALM_S)
        registrations.stop()
        tally = traffic.stop()
        children = server.children
        exit_code = server.stop()
        leftovers += _still_there(children)
    finally:
        server.end()
    tracebacks = sum(log.read_text(errors="replace").count("Traceback (most") for log in logs)
    broken = {
        "surprises": dict(tally.surprises.most_common(20)),
        "jobs that did not end READY": registrations.lost,
        "processes left behind": leftovers,
        "tracebacks in the log": tracebacks,
        "exit code": exit_code,
    }
    if options.keep_logs is not None:
        options.keep_logs.mkdir(parents=True, exist_ok=True)
        for log in logs:
            (options.keep_logs / log.name).write_bytes(log.read_bytes())
    return {
        "command": " ".join(["python -m tests.chaos", *sys.argv[1:]]),
        "environment": environment.describe(),
        "minutes": options.minutes,
        "kills": dict(blows.struck),
        "calls": dict(tally.outcomes),
        "longest time without an answer, s": round(tally.longest_gap_s, 2),
        "jobs": dict(registrations.ended),
        "broken": {what: found for what, found in broken.items() if found},
    }


def _start(server: ServerProcess, folder: Path, port: str, number: int) -> Path:
    server.log_path = folder / f"server-{number}.log"
    server.start(grpc_port=port)
    return server.log_path


def _still_there(children: list[psutil.Process]) -> int:
    """How many processes outlive their front end, well after its end."""
    _, alive = psutil.wait_procs(children, timeout=20)
    for process in alive:
        print(f"left behind: {process}", file=sys.stderr)
        process.kill()
    return len(alive)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="of a client between calls")
    parser.add_argument("--mean-seconds", type=float, default=5.0, help="between two kills")
    parser.add_argument("--out", type=Path, help="write what was seen here, too (JSON)")
    parser.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy the server's logs here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
