"""The SDK installs alone: it loads nothing of the server and none of the server's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "client"
PROGRAM = """
import sys, braid_client
print(braid_client.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_sdk_loads_grpc_protobuf_and_numpy_only(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), "PYTHONSAFEPATH": "1"}

    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    place, loaded = run.stdout.splitlines()
    assert Path(place).parent == CLIENT / "braid_client"
    ours = {"core", "protos", "scheduler", "engine", "server", "benchmarks"}
    theirs = {"torch", "onnx", "onnxruntime", "pydantic", "rich", "sqlalchemy"}
    assert set(loaded.split()) & (ours | theirs) == set()
    assert {"grpc", "google", "numpy"} <= set(loaded.split())
