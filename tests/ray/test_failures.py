"""Machines of a Ray cluster that die under load, the head too, and nodes that are replaced."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import pytest

from tests.clock import until
from tests.models.small import small_cnn
from tests.ray.cluster import Cluster
from tests.ray.redis import Redis
from tests.service.load import Load

pytestmark = pytest.mark.ray

CLIENTS = 4
CALM_S = 2.0
LIMIT_S = 30.0
"""Of a call, so that one which hangs is seen."""


@pytest.fixture(scope="module")
def model(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = small_cnn(tmp_path_factory.mktemp("models") / "net.onnx")
    with cluster.client(1) as client:
        client.register("net", file, batch_sizes=[1], planner="sequential", wait=True)
    cluster.await_model("net")
    return "net"


@pytest.fixture(autouse=True)
def strong(cluster: Cluster) -> Iterator[None]:
    """Each test begins with all machines and ends with them."""
    cluster.await_strength()
    yield
    for machine in cluster.machines:
        if not machine.is_on:
            machine.start(wait=False)
    cluster.await_strength()


@contextmanager
def loaded(cluster: Cluster, model: str, *machines: int) -> Iterator[Load]:
    """Clients that ask the ingress of these machines, in turn, while the context is open."""
    x = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    with ExitStack() as opened:
        clients = [
            opened.enter_context(cluster.client(machines[number % len(machines)]))
            for number in range(CLIENTS)
        ]
        load = Load([partial(one.infer, model, {"x": x}, timeout_s=LIMIT_S) for one in clients])
        try:
            yield load
        finally:
            load.stop()


def test_every_call_is_answered_while_a_machine_dies_and_comes_back(
    cluster: Cluster, model: str
) -> None:
    with loaded(cluster, model, 0, 1) as running:
        time.sleep(CALM_S)
        cluster.machines[2].power_off()
        time.sleep(CALM_S)
        cluster.machines[2].start(wait=False)
        cluster.await_strength()
        time.sleep(CALM_S)

    assert running.outcomes["OK"] > 0
    assert set(running.outcomes) <= {"OK", "UNAVAILABLE"}
    assert running.outcomes["UNAVAILABLE"] <= CLIENTS


def test_nodes_are_replaced_without_an_error_and_without_measuring(
    cluster: Cluster, model: str
) -> None:
    measured = cluster.value("select count(*) from measurements")
    before = cluster.replicas()
    with loaded(cluster, model, 0, 1, 2) as running:
        ran = cluster.deploy("--roll")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        cluster.await_replaced(before)
        cluster.await_strength()

    assert set(running.outcomes) == {"OK"}, running.outcomes
    assert cluster.value("select count(*) from measurements") == measured


def test_a_machine_that_is_away_while_nodes_are_replaced_gets_its_node_when_it_is_back(
    cluster: Cluster, model: str
) -> None:
    before = cluster.replicas()
    cluster.machines[2].power_off()
    until(lambda: cluster.alive() == 2, 60)
    with ThreadPoolExecutor(1) as pool:
        rolling = pool.submit(cluster.deploy, "--roll")
        until(lambda: "STARTING" in cluster.states() or rolling.done(), 240)
        cluster.machines[2].start(wait=False)
        ran = rolling.result()

    assert ran.returncode == 0, ran.stdout + ran.stderr
    cluster.await_strength()
    assert not before & cluster.replicas()


def test_calls_go_on_while_the_head_is_away_and_a_new_one_takes_over(
    cluster: Cluster, model: str
) -> None:
    if why := Redis.missing():
        pytest.skip(why)
    with loaded(cluster, model, 1, 2) as running:
        time.sleep(CALM_S)
        cluster.head.power_off()
        time.sleep(2 * CALM_S)
        cluster.head.start(wait=False)
        cluster.await_head()
        cluster.await_strength()
        time.sleep(CALM_S)

    assert set(running.outcomes) <= {"OK", "UNAVAILABLE"}
    assert running.outcomes["UNAVAILABLE"] <= CLIENTS


def test_where_no_node_is_up_calls_are_unavailable(cluster: Cluster, model: str) -> None:
    """Neither a replica nor the proxy beside the head is left: HAProxy answers by itself."""
    with loaded(cluster, model, 1) as running:
        cluster.on(1).inside("pkill", "-9", "-f", "ServeReplica|ProxyActor")
        cluster.machines[0].power_off()
        cluster.machines[2].power_off()
        until(lambda: running.outcomes["UNAVAILABLE"] > 0, 60)
        time.sleep(CALM_S)

    assert set(running.outcomes) <= {"OK", "UNAVAILABLE"}
