"""Machines of a Ray cluster killed in turn under load, and all nodes replaced under load."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fleet.stand import Findings
from benchmarks.ray.load import Load, loaded
from tests.models.small import small_cnn
from tests.ray.cluster import Cluster

MODEL = "net"
BACK_S, GAP_S = 60.0, 2.0
CALM_S = 10.0
"""Load before a machine is killed, and again before it comes back."""


def register(cluster: Cluster, folder: Path) -> None:
    """Have all nodes serve a small network whose schedule was measured."""
    with cluster.client(1) as client:
        file = small_cnn(folder / "net.onnx")
        client.register(MODEL, file, batch_sizes=[1, 4], planner="ios", wait=True)
    cluster.await_model(MODEL)


def kill(cluster: Cluster, index: int, *, clients: int = 8, seconds: float = 60.0) -> Findings:
    """Kill all processes of a machine under load, and switch it on again."""
    findings, machine = Findings(), cluster.machines[index]
    others = [other.address for other in cluster.machines if other is not machine]
    measured = cluster.value("select count(*) from measurements")
    began = time.monotonic()
    with loaded(Load(others, MODEL, clients)) as load:
        time.sleep(CALM_S)
        machine.power_off()
        killed = time.monotonic()
        time.sleep(CALM_S)
        machine.start(wait=False)
        on = time.monotonic()
        if machine is cluster.head:
            cluster.await_head()
        cluster.await_strength()
        machine.await_ready()
        strong = time.monotonic()
        time.sleep(max(CALM_S, began + seconds - strong))
    _note(findings, load)
    findings.figures["s from power on to full strength"] = round(strong - on, 1)
    later = [failure for failure in load.failures if failure.began > killed]
    findings.figures["failed that began after the kill"] = len(later)
    findings.check(set(load.outcomes) <= {"OK", "UNAVAILABLE"}, f"{load.failures[:5]}")
    findings.check(not later, f"not under way on the machine: {later[:5]}")
    findings.check(load.longest_gap_s < GAP_S, f"{load.longest_gap_s:.1f} s without an answer")
    findings.check(strong - on < BACK_S, f"back after {strong - on:.0f} s")
    again = cluster.value("select count(*) from measurements") - measured
    findings.check(again == 0, f"{again} measured again")
    return findings


def roll(cluster: Cluster, *, clients: int = 8) -> Findings:
    """Replace all nodes under load."""
    findings, before = Findings(), cluster.replicas()
    measured = cluster.value("select count(*) from measurements")
    addresses = [node.address for node in cluster.machines]
    with loaded(Load(addresses, MODEL, clients)) as load:
        time.sleep(CALM_S)
        began = time.monotonic()
        ran = cluster.deploy("--roll")
        findings.check(ran.returncode == 0, ran.stdout + ran.stderr)
        deployed = time.monotonic()
        cluster.await_replaced(before)
        cluster.await_strength()
        rolled = time.monotonic()
        time.sleep(CALM_S)
    _note(findings, load)
    findings.figures["s of braid ray deploy"] = round(deployed - began, 1)
    findings.figures["s until all were replaced"] = round(rolled - began, 1)
    findings.check(set(load.outcomes) == {"OK"}, f"{dict(load.outcomes)} {load.failures[:5]}")
    again = cluster.value("select count(*) from measurements") - measured
    findings.figures["measurements"] = again
    findings.check(again == 0, f"{again} measured again")
    return findings


def _note(findings: Findings, load: Load) -> None:
    failed: dict[str, Any] = {name: n for name, n in load.outcomes.items() if name != "OK"}
    findings.figures |= {
        "requests": sum(load.outcomes.values()),
        "failed": sum(failed.values()),
        "statuses": ", ".join(f"{name} {n}" for name, n in sorted(failed.items())) or "OK",
        "longest s without an answer": round(load.longest_gap_s, 2),
    }


CAMPAIGNS: dict[str, Callable[[Cluster], Findings]] = {
    "kill-3": lambda cluster: kill(cluster, 2),
    "kill-2": lambda cluster: kill(cluster, 1),
    "kill-head": lambda cluster: kill(cluster, 0),
    "roll": roll,
}
