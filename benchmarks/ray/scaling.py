"""Autoscaling under a step of load, on devices that sleep: how many nodes run, and a chart.

load of 0.3 nodes ──four times as much──> more nodes ──0.3 again──> one node
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
from onnx import helper
from tritonclient.grpc import service_pb2_grpc

from benchmarks.fleet.simulate.load import OpenLoop
from benchmarks.fleet.simulate.pictures import Axes, draw_steps
from benchmarks.fleet.stand import Findings, eventually
from benchmarks.ray.load import LIMIT_S, Load, request
from benchmarks.ray.sleeping import write_configuration, write_latencies
from braid.server.ray.application import Nodes
from braid_client import BraidError, Client
from tests.models.graphs import graph, save, tensors
from tests.ray.cluster import Cluster

MODEL, WIDTH = "sleeper", 4
LATENCY_S = 0.05
STEP_S, BACK_S, END_S = 15.0, 80.0, 135.0
LOAD = OpenLoop(((0.0, 6.0), (STEP_S, 24.0), (BACK_S, 6.0)))
DOWN_AFTER_S = 15.0
AXES = Axes("Devices that sleep for 50 ms, on Ray Serve", "seconds", "nodes")

Steps = list[tuple[float, float]]  # second, value from then on


def deploy(cluster: Cluster, folder: Path) -> None:
    """Deploy one node whose device sleeps, which may become as many as there are machines."""
    for machine in cluster.machines:
        write_latencies(machine.folder / "store", {1: 1e6 * LATENCY_S})
    nodes = Nodes(1, len(cluster.machines))
    file = write_configuration(folder / "serve.json", nodes, downscale_delay_s=DOWN_AFTER_S)
    ran = cluster.deploy("--config", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr + cluster.head.log
    shape = ["batch", WIDTH]
    same = helper.make_node("Identity", ["x"], ["y"])
    model = save(graph([same], tensors(x=shape), tensors(y=shape), {}), folder / "sleeper.onnx")
    with cluster.client(attempts=10) as client:
        client.register(MODEL, model, batch_sizes=[1], planner="sequential")
        answered, _ = eventually(lambda: _answers(client), 60)
    assert answered, cluster.head.log


def _answers(client: Client) -> bool:
    with suppress(BraidError):
        client.infer(MODEL, {"x": np.ones((1, WIDTH), np.float32)})
        return True
    return False


def scale(cluster: Cluster, picture: Path | None) -> Findings:
    """Ask at random moments, four times as often for a while; draw how many nodes ran."""
    findings, load = Findings(), Load([cluster.head.address], MODEL, 1, shape=(1, WIDTH))
    with _watched(lambda: cluster.states()["RUNNING"]) as running:
        _ask(load)
    more = [at for at, count in running if at > STEP_S and count > 1]
    fewer = [at for at, count in running if at > BACK_S and count == 1]
    findings.figures = {
        "requests": sum(load.outcomes.values()),
        "failed": sum(load.outcomes.values()) - load.outcomes["OK"],
        "most nodes": int(max(count for _, count in running)),
        "s from the step to a second node": round(min(more, default=END_S) - STEP_S, 1),
        "s from the step back to one node": round(min(fewer, default=END_S) - BACK_S, 1),
    }
    findings.check(set(load.outcomes) == {"OK"}, f"{dict(load.outcomes)} {load.failures[:5]}")
    findings.check(bool(more), "no second node")
    findings.check(running[-1][1] == 1, f"{running[-1][1]:.0f} nodes at the end")
    offered = [(at, rate * LATENCY_S) for at, rate in LOAD.rates]
    if picture is not None:
        end = [(END_S, offered[-1][1])]
        draw_steps({"nodes that run": running, "load, in nodes": offered + end}, AXES, picture)
    return findings


def _ask(load: Load) -> None:
    """Begin requests at random moments until the end, and wait for all answers."""
    chance, asked, calls = random.Random(1), request(load.model, load.shape), []
    with grpc.insecure_channel(load.addresses[0]) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        began, at = time.monotonic(), 0.0
        while (at := _next(chance, at)) < END_S:
            time.sleep(max(0.0, began + at - time.monotonic()))
            calls.append((time.monotonic(), infer.future(asked, timeout=LIMIT_S)))
        for asked_at, call in calls:
            error = call.exception()
            load.count(asked_at, "OK" if error is None else error.code().name, str(error or ""))


def _next(chance: random.Random, at: float) -> float:
    """Return when the request after ``at`` begins."""
    rate, until = LOAD.rate_at(at)
    later = at + chance.expovariate(rate)
    return later if later < until else _next(chance, until)


@contextmanager
def _watched(look: Callable[[], int]) -> Iterator[Steps]:
    """Note what ``look`` returns each second while the context is open."""
    stopping, looks, began = threading.Event(), [(0.0, float(look()))], time.monotonic()

    def run() -> None:
        while not stopping.wait(1.0):
            looks.append((time.monotonic() - began, float(look())))

    watcher = threading.Thread(target=run)
    watcher.start()
    try:
        yield looks
    finally:
        stopping.set()
        watcher.join()
