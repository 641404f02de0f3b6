"""The ingress beside the replica's own port: latency in turns, and HAProxy's CPU a request.

    client ──> HAProxy ──> replica      against      client ──> replica

Both on one machine, one client, an identity of 600 KB both ways: what is compared is the path.
"""

from __future__ import annotations

import re
import time
from math import prod
from pathlib import Path
from statistics import median

import grpc
from onnx import helper
from tritonclient.grpc import service_pb2_grpc

from benchmarks.fleet.stand import Findings
from benchmarks.ray.load import LIMIT_S, request
from tests.models.graphs import graph, save, tensors
from tests.ray.cluster import Cluster

MODEL, SHAPE = "identity", (1, 3, 224, 224)
ROUNDS, CALLS, WARM = 7, 150, 50
MOST = 2.0  # ratio of the medians

CONFIGURATION = "/tmp/haproxy-serve/*/haproxy.cfg"
"""Files of the HAProxy of Ray Serve: in a folder for each node."""

_SERVER = re.compile(r"^\s*server \S*SERVE_REPLICA\S* (\S+):(4\d{4}) proto h2 check", re.MULTILINE)


def register(cluster: Cluster, folder: Path) -> None:
    shape = ("n", *SHAPE[1:])
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    file = save(graph(nodes, tensors(x=shape), tensors(y=shape)), folder / "identity.onnx")
    with cluster.client() as client:
        client.register(MODEL, file, batch_sizes=[1], planner="sequential", wait=True)
    cluster.await_model(MODEL)


def replica_address(cluster: Cluster) -> str:
    """Address of the replica of a cluster of one machine, as its HAProxy knows it."""
    written = cluster.head.inside("sh", "-c", f"cat {CONFIGURATION}").stdout
    [(_, port)] = set(_SERVER.findall(written))
    return f"{cluster.head.host}:{port}"


def measure(cluster: Cluster) -> Findings:
    """Compare the median latency of both paths in each round."""
    paths = {"replica": replica_address(cluster), "ingress": cluster.head.address}
    by_path: dict[str, list[float]] = {name: [] for name in paths}
    cpu_ms: list[float] = []
    for number in range(ROUNDS):
        order = list(paths) if number % 2 == 0 else list(paths)[::-1]
        for name in order:
            before = _haproxy_s(cluster)
            times = _times_ms(paths[name])
            by_path[name].append(median(times[WARM:]))
            if name == "ingress":
                cpu_ms.append(1000 * (_haproxy_s(cluster) - before) / len(times))
    ratios = [b / a for a, b in zip(by_path["replica"], by_path["ingress"], strict=True)]
    ratio = median(ratios)
    findings = Findings()
    findings.figures = {
        "bytes each way": 4 * prod(SHAPE),
        **{f"p50 ms, {name}": round(median(ms), 3) for name, ms in by_path.items()},
        "ratio of p50": round(ratio, 3),
        "ratio by round": " ".join(f"{value:.2f}" for value in ratios),
        "HAProxy CPU ms a request": round(median(cpu_ms), 3),
    }
    findings.check(ratio <= MOST, f"{ratio:.2f} times the replica's own port")
    return findings


def _times_ms(address: str) -> list[float]:
    asked, times = request(MODEL, SHAPE), []
    with grpc.insecure_channel(address) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        for _ in range(WARM + CALLS):
            began = time.perf_counter()
            infer(asked, timeout=LIMIT_S)
            times.append(1000 * (time.perf_counter() - began))
    return times


def _haproxy_s(cluster: Cluster) -> float:
    """CPU seconds that HAProxy's processes of the machine have used."""
    total = 0.0
    for process in cluster.head.processes():
        if process.name() == "haproxy":
            used = process.cpu_times()
            total += used.user + used.system
    return total
