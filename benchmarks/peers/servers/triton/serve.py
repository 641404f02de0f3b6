"""Triton, from PyTriton's wheel, on a model repository of its own; ``model.py`` runs the model.

UP: the server runs without a model. READY: the model is loaded in every instance.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import onnxruntime
import pytriton
import tritonclient.grpc

HOME = Path(pytriton.__file__).parent / "tritonserver"
DATATYPES = {"tensor(float)": "TYPE_FP32", "tensor(int64)": "TYPE_INT64"}


def lay_out(given: argparse.Namespace, folder: Path) -> None:
    """Write the model's folder, and the Python backend with the stub of this Python's version."""
    version = folder / "models" / given.name / "1"
    version.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("model.py"), version)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = HOME / "python_backend_stubs" / python / "triton_python_backend_stub"
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for part in (stub, *(HOME / "backends" / "python").iterdir()):
        (backend / part.name).symlink_to(part)


def dims(shape: "list[int | str]") -> list[int]:
    """Extents after the batch, -1 for open ones."""
    return [extent if isinstance(extent, int) else -1 for extent in shape[1:]]


def configuration(given: argparse.Namespace) -> dict[str, object]:
    """The model's configuration, in the place of a ``config.pbtxt``."""
    session = onnxruntime.InferenceSession(given.model)
    largest = max(int(size) for size in given.batch_sizes.split(","))
    instances = given.threads if given.instance_per_thread else 1
    parameters = {
        "engine": given.engine,
        "model": given.model,
        "threads": str(given.threads // instances),
    }
    several: dict[str, object] = {"dynamic_batching": {}} if largest > 1 else {}
    return {
        "backend": "python",
        "max_batch_size": largest,
        **{
            key: [
                {"name": port.name, "data_type": DATATYPES[port.type], "dims": dims(port.shape)}
                for port in ports
            ]
            for key, ports in (("input", session.get_inputs()), ("output", session.get_outputs()))
        },
        "instance_group": [{"kind": "KIND_CPU", "count": instances}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        **several,
    }


def start(given: argparse.Namespace, folder: Path) -> "subprocess.Popen[bytes]":
    """Start tritonserver; its Python is this one: by ``PATH`` and by the folder of libpython."""
    command = [
        f"{HOME}/bin/tritonserver",
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        "--model-control-mode=explicit",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={given.port}",
        "--allow-http=false",
        "--allow-metrics=false",
    ]
    paths = {
        "PATH": str(Path(sys.executable).parent),
        "LD_LIBRARY_PATH": sysconfig.get_config_var("LIBDIR"),
    }
    for name, first in paths.items():
        paths[name] = os.pathsep.join(filter(None, (first, os.environ.get(name))))
    return subprocess.Popen(command, env={**os.environ, **paths})


def wait_until_listening(port: int, server: "subprocess.Popen[bytes]") -> None:
    """Return when tritonserver takes connections; exit if it ended."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit(f"tritonserver ended with status {server.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--batch-sizes", "--folder", "--engine"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--instance-per-thread", action="store_true")
    given = parser.parse_args()
    folder = Path(given.folder).absolute()
    lay_out(given, folder)
    server = start(given, folder)
    signal.signal(signal.SIGTERM, lambda number, frame: server.terminate())
    wait_until_listening(int(given.port), server)
    print("UP", flush=True)
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{given.port}")
    client.load_model(given.name, config=json.dumps(configuration(given)))
    print("READY", flush=True)
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
