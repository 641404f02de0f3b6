"""MLServer with ``runtime.py``: as it comes, with one worker process, or all in one process."""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

BATCH_WAIT_S = 0.002
"""Time for a batch to fill, once its first request is there."""


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parallel-workers", type=int, default=1)
    given = parser.parse_args()
    folder = Path(given.folder)
    http = free_port()
    server = {
        "host": "127.0.0.1",
        "grpc_port": int(given.port),
        "http_port": http,
        "metrics_endpoint": None,
        "parallel_workers": given.parallel_workers,
        "grpc_max_message_length": 64 << 20,
        "debug": False,
    }
    largest = max(int(size) for size in given.batch_sizes.split(","))
    batching = {"max_batch_size": largest, "max_batch_time": BATCH_WAIT_S} if largest > 1 else {}
    model = {
        "name": given.name,
        "implementation": "runtime.OnnxModel",
        "parameters": {"uri": given.model, "extra": {"threads": given.threads}},
        **batching,
    }
    (folder / "settings.json").write_text(json.dumps(server))
    (folder / "model-settings.json").write_text(json.dumps(model))
    shutil.copy(Path(__file__).with_name("runtime.py"), folder)
    program = Path(sys.executable).with_name("mlserver")
    process = subprocess.Popen([program, "start", "."], cwd=folder)
    ready = f"http://127.0.0.1:{http}/v2/models/{given.name}/ready"
    while process.poll() is None:
        try:
            urlopen(ready).close()
        except URLError:
            time.sleep(0.05)
        else:
            print("READY", flush=True)
            break
    return process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main())
