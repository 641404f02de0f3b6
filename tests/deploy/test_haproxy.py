"""The balancer of a fleet: a real HAProxy with our configuration, two real servers behind it."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as triton

from braid_client import Client, InferRequest, RetryPolicy, Unavailable
from tests.clock import until
from tests.deploy.haproxy import FILE, Addresses, haproxy
from tests.deploy.places import program
from tests.models.small import product, small_cnn
from tests.service.load import Load
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.ci

ROWS = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
ONCE = RetryPolicy(max_attempts=1)
NODES = ("first", "second")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Two servers with the same model."""
    program("haproxy", "haproxy")
    folder = tmp_path_factory.mktemp("nodes")
    model = small_cnn(folder / "cnn.onnx")
    made = [
        ServerProcess(
            folder / f"store-{name}", BRAID_SHUTDOWN_DELAY_SECONDS="5", BRAID_READY_MODELS="cnn"
        )
        for name in NODES
    ]
    try:
        for node in made:
            node.start().register({"cnn": model}, (1, 2))
        yield made
    finally:
        for node in made:
            node.end()


@pytest.fixture(scope="module")
def balancer(
    nodes: list[ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Addresses]:
    """HAProxy, both nodes in service."""
    addresses = [Addresses(node.address, node.http_address) for node in nodes]
    with haproxy(tmp_path_factory.mktemp("haproxy"), addresses) as running:
        both_serve(running, nodes)
        yield running


def both_serve(balancer: Addresses, nodes: list[ServerProcess]) -> None:
    """Wait until requests reach either node."""
    before = [answered(node) for node in nodes]

    def look() -> bool:
        with Client(balancer.address, retry=ONCE) as client:
            for _ in range(4):
                with suppress(Unavailable):
                    client.infer("cnn", {"x": ROWS})
        return all(answered(node) > was for node, was in zip(nodes, before, strict=True))

    until(look)


def answered(node: ServerProcess) -> float:
    return node.metric("braid_requests_total", model="cnn", outcome="OK")


def by_triton(client: Any) -> Any:
    """One call of tritonclient, which tries nothing again."""
    given = triton.InferInput("x", ROWS.shape, "FP32")
    given.set_data_from_numpy(ROWS)
    answer = client.infer("cnn", [given], client_timeout=60).as_numpy("y")
    assert answer is not None
    return answer


def test_haproxy_accepts_the_configuration() -> None:
    command = [program("haproxy", "haproxy"), "-c", "-f", str(FILE)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "[WARNING]" in line]
    assert [line for line in lines if "could not resolve address 'node-" not in line] == []


def test_both_clients_get_the_answers_of_a_node(
    balancer: Addresses, nodes: list[ServerProcess]
) -> None:
    with nodes[0].client() as direct:
        wanted = direct.infer("cnn", {"x": ROWS}).outputs["y"]
    with Client(balancer.address) as client:
        np.testing.assert_allclose(client.infer("cnn", {"x": ROWS}).outputs["y"], wanted, 1e-5)
    with triton.InferenceServerClient(balancer.address) as other:
        np.testing.assert_allclose(by_triton(other), wanted, 1e-5)


def test_requests_of_one_connection_reach_both_nodes(
    balancer: Addresses, nodes: list[ServerProcess]
) -> None:
    before = [answered(node) for node in nodes]

    with Client(balancer.address) as client, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: client.infer("cnn", {"x": ROWS}), range(40)))

    assert all(answered(node) > was for node, was in zip(nodes, before, strict=True))


def test_every_request_of_a_stream_is_answered(balancer: Addresses) -> None:
    requests = [InferRequest("cnn", {"x": ROWS}, request_id=str(i)) for i in range(50)]
    with Client(balancer.address) as client:
        answers = list(client.infer_stream(requests, timeout_s=120))
    assert {answer.request_id for answer in answers} == {str(i) for i in range(50)}
    assert all(answer.result is not None for answer in answers)

    assert stream_of_triton(balancer.address, 50) == 50


def stream_of_triton(address: str, count: int) -> int:
    """Answers without an error to requests on one stream of tritonclient."""
    results: SimpleQueue[Exception | None] = SimpleQueue()
    given = triton.InferInput("x", ROWS.shape, "FP32")
    given.set_data_from_numpy(ROWS)
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: results.put(error))
        for _ in range(count):
            client.async_stream_infer("cnn", [given])
        errors = [results.get(timeout=120) for _ in range(count)]
        client.stop_stream()
    assert set(errors) == {None}, errors
    return count


def test_an_upload_of_40_mb_arrives(
    balancer: Addresses, nodes: list[ServerProcess], tmp_path: Path
) -> None:
    path = product(tmp_path / "x.onnx", np.zeros((3200, 3200), np.float32))

    with Client(balancer.address) as client:
        job = client.register("large", path, batch_sizes=[1], planner="sequential")

    def size_bytes() -> int:
        for each in nodes:
            with each.client() as direct:
                for model in direct.models():
                    if (model.name, model.version) == ("large", job.version):
                        return model.size_bytes
        return 0

    assert until(size_bytes) == path.stat().st_size > 40_000_000


def test_http_reaches_a_node_but_for_what_each_node_has_of_its_own(balancer: Addresses) -> None:
    def status(path: str) -> int:
        try:
            with urlopen(f"http://{balancer.http_address}{path}", timeout=30) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code

    assert status("/v2/models/cnn") == 200
    assert status("/console/models/cnn") == 200
    assert status("/readyz") == 200
    assert status("/metrics") == 404


def test_a_node_that_is_drained_costs_no_request(
    balancer: Addresses, nodes: list[ServerProcess]
) -> None:
    with (
        Client(balancer.address, retry=ONCE) as client,
        triton.InferenceServerClient(balancer.address) as other,
    ):
        load = Load(
            [
                lambda: client.infer("cnn", {"x": ROWS}),
                lambda: by_triton(other),
                lambda: stream_of_triton(balancer.address, 5),
            ],
            0.005,
        )
        for node in nodes:
            both_serve(balancer, nodes)
            ports = [each.rsplit(":", 1)[1] for each in (node.address, node.http_address)]
            assert node.stop() == 0
            load.until("OK", 20)
            node.start(ports[0], ["--http-port", ports[1]])
            both_serve(balancer, nodes)
        outcomes = load.stop()

    assert set(outcomes) == {"OK"}, outcomes


def test_a_killed_node_costs_only_what_it_had_and_clients_that_try_again_nothing(
    balancer: Addresses, nodes: list[ServerProcess]
) -> None:
    def once() -> None:
        with suppress(Unavailable):
            single.infer("cnn", {"x": ROWS})

    both_serve(balancer, nodes)
    node = nodes[0]
    ports = [each.rsplit(":", 1)[1] for each in (node.address, node.http_address)]
    with Client(balancer.address) as client, Client(balancer.address, retry=ONCE) as single:
        load = Load([lambda: client.infer("cnn", {"x": ROWS}), once], 0.005)
        load.until("OK", 20)
        node.end()
        load.until("OK", 100)
        outcomes = load.stop()
    node.start(ports[0], ["--http-port", ports[1]])
    both_serve(balancer, nodes)

    assert set(outcomes) == {"OK"}, outcomes


def test_without_a_node_callers_are_told_to_try_again(
    nodes: list[ServerProcess], tmp_path: Path
) -> None:
    gone = [Addresses("127.0.0.1:1", "127.0.0.1:1")] * 2
    with haproxy(tmp_path, gone) as balancer, Client(balancer.address, retry=ONCE) as client:

        def is_refused() -> bool:
            with pytest.raises(Unavailable) as refusal:
                client.infer("cnn", {"x": ROWS})
            return "no node is ready" in str(refusal.value)

        until(is_refused)
