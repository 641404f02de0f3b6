"""Calls of functions in the front end for one request, counted by a profiler.

    python -m benchmarks.calls --json FILE

One caller, one connection, a model of one ``Relu``; 8 numbers and an image. Functions in Python
and in C are counted apart, in the thread of the event loop, from the first byte to the last.
"""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.environment import REPOSITORY, describe
from benchmarks.load.processes import BraidServer, braid_server
from benchmarks.reports import parser_of
from braid_client import AsyncClient

REQUESTS = 1000
ONCE = "C Encoder.encode"
"""Function that is called once for a request: it writes the message to the worker."""

SHOWN = 60
SIZES = {"8 numbers": 8, "image": 3 * 224 * 224}

PROFILER = """
import json, os, signal, sys
from collections import Counter

calls = Counter()

def count(frame, event, argument):
    if event == "call":
        code = frame.f_code
        calls[f"{code.co_filename}:{code.co_qualname}"] += 1
    elif event == "c_call":
        calls["C " + getattr(argument, "__qualname__", str(argument))] += 1

def toggle(*_):
    if sys.getprofile() is None:
        calls.clear()
        sys.setprofile(count)
    else:
        sys.setprofile(None)
        out = os.environ["CALLS_OUT"]
        with open(f"{out}.new", "w") as file:
            json.dump(calls, file)
        os.replace(f"{out}.new", out)

if "CALLS_OUT" in os.environ and sys.argv[:1] == ["-m"]:
    signal.signal(signal.SIGUSR2, toggle)
"""
"""``sitecustomize.py`` of the server: a signal begins the count, the next one ends it."""


def main() -> None:
    parser = parser_of("benchmarks.calls", __doc__)
    parser.add_argument("--json", type=Path, help="file for the counts")
    arguments = parser.parse_args()
    counts = {name: counted(size) for name, size in SIZES.items()}
    for name, calls in counts.items():
        print(f"\n{name}: {in_python(calls):.0f} calls of functions in Python, ", end="")
        print(f"{sum(calls.values()) - in_python(calls):.0f} in C\n")
        rooms = Counter[str]()
        for function, number in calls.items():
            rooms[room_of(function)] += number
        for room, number in rooms.most_common():
            print(f"{number:8.1f}  {room}")
        print()
        for function, number in calls.most_common(SHOWN):
            print(f"{number:8.2f}  {function}")
    if arguments.json is not None:
        document = {"environment": describe("grpcio", "uvloop"), "calls": counts}
        arguments.json.write_text(json.dumps(document, indent=2))


def counted(size: int) -> Counter[str]:
    """Calls for one request of so many numbers, by function."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "sitecustomize.py").write_text(PROFILER)
        save_model(path / "relu.onnx", size)
        out = path / "calls.json"
        environment = {"PYTHONPATH": folder, "CALLS_OUT": str(out)}
        with braid_server(path / "store", environment=environment) as server:
            server.client.register("relu", path / "relu.onnx", batch_sizes=[1], wait=True)
            asyncio.run(ask(server, np.ones((1, size), np.float32)))
            while not out.exists():
                time.sleep(0.1)
        counts = json.loads(out.read_text())
    return Counter({function: number / counts[ONCE] for function, number in counts.items()})


async def ask(server: BraidServer, numbers: np.ndarray[Any, Any]) -> None:
    async with AsyncClient(server.address) as client:
        for request in range(2 * REQUESTS):
            if request % REQUESTS == REQUESTS // 2:
                server.process.send_signal(signal.SIGUSR2)
            await client.infer("relu", {"x": numbers})


def save_model(path: Path, size: int) -> None:
    shape: list[str | int | None] = ["N", size]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def in_python(calls: Counter[str]) -> float:
    return sum(number for function, number in calls.items() if not function.startswith("C "))


def room_of(function: str) -> str:
    if function.startswith("C "):
        return "C"
    file = function.partition(":")[0]
    return file.rpartition("/")[0].removeprefix(f"{REPOSITORY}/") or file


if __name__ == "__main__":
    main()
