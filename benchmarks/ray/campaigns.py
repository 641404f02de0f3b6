"""Machines of a Ray cluster killed in turn under load, and all nodes replaced under load."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fleet.stand import Seen
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


def kill(cluster: Cluster, index: int, *, clients: int = 8, seconds: float = 60.0) -> Seen:
    """Kill all processes of a machine under load, and switch it on again."""
    seen, machine = Seen(), cluster.machines[index]
    others = [each.address for each in cluster.machines if each is not machine]
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
    _note(seen, load)
    seen.figures["s from power on to full strength"] = round(strong - on, 1)
    later = [failure for failure in load.failures if failure.began > killed]
    seen.figures["failed that began after the kill"] = len(later)
    seen.check(set(load.outcomes) <= {"OK", "UNAVAILABLE"}, f"{load.failures[:5]}")
    seen.check(not later, f"not under way on the machine: {later[:5]}")
    seen.check(load.longest_gap_s < GAP_S, f"{load.longest_gap_s:.1f} s without an answer")
    seen.check(strong - on < BACK_S, f"back after {strong - on:.0f} s")
    again = cluster.value("select count(*) from measurements") - measured
    seen.check(again == 0, f"{again} measured again")
    return seen


def roll(cluster: Cluster, *, clients: int = 8) -> Seen:
    """Replace all nodes under load."""
    seen, before = Seen(), cluster.replicas()
    measured = cluster.value("select count(*) from measurements")
    addresses = [each.address for each in cluster.machines]
    with loaded(Load(addresses, MODEL, clients)) as load:
        time.sleep(CALM_S)
        began = time.monotonic()
        ran = cluster.deploy("--roll")
        seen.check(ran.returncode == 0, ran.stdout + ran.stderr)
        deployed = time.monotonic()
        cluster.await_replaced(before)
        cluster.await_strength()
        rolled = time.monotonic()
        time.sleep(CALM_S)
    _note(seen, load)
    seen.figures["s of braid ray deploy"] = round(deployed - began, 1)
    seen.figures["s until all were replaced"] = round(rolled - began, 1)
    seen.check(set(load.outcomes) == {"OK"}, f"{dict(load.outcomes)} {load.failures[:5]}")
    again = cluster.value("select count(*) from measurements") - measured
    seen.figures["measurements"] = again
    seen.check(again == 0, f"{again} measured again")
    return seen


def _note(seen: Seen, load: Load) -> None:
    failed: dict[str, Any] = {name: n for name, n in load.outcomes.items() if name != "OK"}
    seen.figures |= {
        "requests": sum(load.outcomes.values()),
        "failed": sum(failed.values()),
        "statuses": ", ".join(f"{name} {n}" for name, n in sorted(failed.items())) or "OK",
        "longest s without an answer": round(load.longest_gap_s, 2),
    }


CAMPAIGNS: dict[str, Callable[[Cluster], Seen]] = {
    "kill-3": lambda cluster: kill(cluster, 2),
    "kill-2": lambda cluster: kill(cluster, 1),
    "kill-head": lambda cluster: kill(cluster, 0),
    "roll": roll,
}
