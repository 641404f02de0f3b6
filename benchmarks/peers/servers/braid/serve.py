"""``braid serve`` of this checkout; the model is registered with --wait.

UP: the server takes uploads. READY: the plan that was found fastest serves.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path

BRAID = [sys.executable, "-m", "braid.server.cli.main"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    for name in ("--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--register", action="append", default=[], help="an option more of that")
    parser.add_argument("--stores", type=Path, help="kept between runs, one a model; or empty")
    given = parser.parse_args()
    store = given.stores / given.name if given.stores else f"{given.folder}/store"
    serve = ["--grpc-port", given.port, "--http-port", "0", "--threads", given.threads]
    server = subprocess.Popen([*BRAID, "serve", "--store", store, *serve])
    _wait_until_listening(int(given.port), server)
    print("UP", flush=True)
    register = ["--batch-sizes", given.batch_sizes, "--planner", "portfolio", "--wait"]
    register += [*given.register, "--address", f"127.0.0.1:{given.port}"]
    command = [*BRAID, "register", given.name, str(given.model), *register]
    if (status := subprocess.run(command).returncode) not in (0, 3):
        return status
    print("READY", flush=True)
    return server.wait()


def _wait_until_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    sys.exit(f"braid serve ended with status {server.returncode}")


if __name__ == "__main__":
    sys.exit(main())
