"""Servers whose devices sleep, each with latencies of its own, all with the same model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from onnx import helper

from benchmarks.environment import REPOSITORY
from benchmarks.fleet.sleeping import LATENCIES
from braid_client import BraidError
from braid_client.records import ENDED
from tests.clock import until
from tests.models.graphs import graph, save, tensors
from tests.service.server_process import ServerProcess

MODEL, WIDTH = "sleeper", 4
_COMMAND = (sys.executable, "-m", "benchmarks.fleet.sleeping.server")


@contextmanager
def sleeping_nodes(
    folder: Path, tables: Sequence[Mapping[int, float]]
) -> Iterator[list[ServerProcess]]:
    """Servers on free ports that answer the model; ends them afterwards.

    Args:
        folder: for stores and logs.
        tables: microseconds of a batch by rows, for each server.
    """
    shape = ["batch", WIDTH]
    same = helper.make_node("Identity", ["x"], ["y"])
    model = save(graph([same], tensors(x=shape), tensors(y=shape), {}), folder / "sleeper.onnx")
    with ExitStack() as stack:
        nodes = []
        for number, table in enumerate(tables, start=1):
            store = folder / f"node-{number}"
            store.mkdir()
            (store / LATENCIES).write_text(json.dumps(table))
            node = _server(store)
            stack.callback(node.end)
            node.start().import_ahead(model)
            _register(node, model, sorted(table))
            nodes.append(node)
        yield nodes


def _server(store: Path) -> ServerProcess:
    return ServerProcess(
        store,
        command=_COMMAND,
        PYTHONPATH=os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        BRAID_LOG_LEVEL="INFO",
        BRAID_PIN_THREADS="false",
        BRAID_THREADS="1",
    )


def _register(node: ServerProcess, model: Path, batch_sizes: list[int]) -> None:
    """Register the model, and wait until it answers and its job has ended, without a schedule."""
    row = np.ones((1, WIDTH), np.float32)
    with node.client() as client:
        client.register(MODEL, model, batch_sizes=batch_sizes, planner="sequential")

        def answers() -> bool:
            with suppress(BraidError):
                client.infer(MODEL, {"x": row})
                return all(job.state in ENDED for job in client.jobs())
            return False

        until(answers, why=lambda: node.log)
