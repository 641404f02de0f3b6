"""``bentoml serve`` on a service of ``service.py``: ``Onnx`` or, with batches, ``Batched``."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    largest = max(int(size) for size in given.batch_sizes.split(","))
    service = "service:Batched" if largest > 1 else "service:Onnx"
    command = [str(Path(sys.executable).with_name("bentoml")), "serve", service]
    command += ["--host", "127.0.0.1", "--port", given.port]
    command += ["--working-dir", str(Path(__file__).parent)]
    variables = {
        "MODEL": given.model,
        "THREADS": given.threads,
        "LARGEST_BATCH": str(max(2, largest)),
        "BENTOML_HOME": f"{given.folder}/bentoml",
        "BENTOML_DO_NOT_TRACK": "True",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(command, env={**os.environ, **variables})
    while process.poll() is None:
        try:
            urlopen(f"http://127.0.0.1:{given.port}/readyz").close()
        except URLError:
            time.sleep(0.05)
        else:
            print("READY", flush=True)
            break
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
