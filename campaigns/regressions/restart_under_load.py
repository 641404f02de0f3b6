"""A restart must not lose a model for a moment: it is not reachable, or it answers.

Clients never stop asking while the server is killed and started again, from before its port is
open: for models that were READY, and to register one and delete another.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from braid_client import BraidError, Client
from braid_client.wire import inference_pb2, inference_pb2_grpc
from campaigns.regressions.scripts import FaultyServer
from tests.models.small import small_cnn
from tests.service.server_process import free_port

RESTARTS = 2
BRANCHES = (1, 2, 3, 4)  # a model for each; they serve one after the other after a restart
NAMES = [f"m{branches}{twin}" for branches in BRANCHES for twin in "abc"]
ROW = np.ones((1, 3, 16, 16), np.float32)
TIMEOUT_S = 60.0
EAGER = (("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 50))
EXPECTED = {"OK", "UNAVAILABLE"}


def check(server: FaultyServer) -> None:
    """Kill and start the server again, and look at all answers on the way."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    server.start(grpc_port=str(port))
    files = [small_cnn(server.folder / f"{n}.onnx", branches=n) for n in BRANCHES]
    server.import_ahead(*files)
    with server.client() as client:
        for name in NAMES:
            client.register(name, files[int(name[1]) - 1], wait=True)
    for turn in range(RESTARTS):
        names = NAMES[: -turn - 1]
        _restart(server, address, names, files[0], f"new{turn}", NAMES[-turn - 1])


def _restart(
    server: FaultyServer, address: str, names: Sequence[str], file: Path, new: str, doomed: str
) -> None:
    outcomes: Counter[str] = Counter()
    stopping = threading.Event()
    server.kill_everything()
    askers = [
        threading.Thread(target=_ask, args=(address, names, outcomes, stopping)) for _ in range(2)
    ]
    admins = [
        threading.Thread(target=_until_done, args=(address, outcomes, act))
        for act in (lambda client: client.register(new, file), lambda client: client.delete(doomed))
    ]
    with _running(askers, stopping), _running(admins):
        server.start(grpc_port=address.rpartition(":")[2])
    assert {entry.partition(":")[0] for entry in outcomes} <= EXPECTED, outcomes
    assert not [entry for entry in outcomes if "imported" in entry], outcomes
    _is_whole(server, [*names, new], doomed)


def _ask(
    address: str, names: Sequence[str], outcomes: Counter[str], stopping: threading.Event
) -> None:
    """Ask for every model in turn until told to stop; count how calls end."""
    tensor = inference_pb2.Tensor(name="x", dtype="FP32", shape=ROW.shape, data=ROW.tobytes())
    with grpc.insecure_channel(address, options=EAGER) as channel:
        infer = inference_pb2_grpc.InferenceServiceStub(channel).Infer
        while not stopping.is_set():
            for name in names:
                request = inference_pb2.InferRequest(model=name, inputs=[tensor])
                try:
                    infer(request, timeout=TIMEOUT_S)
                except grpc.RpcError as error:
                    outcomes[f"{error.code().name}: {error.details()}"] += 1
                    stopping.wait(0.005)  # leave the server some of the machine
                else:
                    outcomes["OK"] += 1


def _until_done(address: str, outcomes: Counter[str], act: Callable[[Client], object]) -> None:
    """Try something until it succeeds, as long as all that fails is reaching the server."""
    ended = ""
    while ended in ("", "UNAVAILABLE"):
        with Client(address) as client:
            try:
                act(client)
                ended = "OK"
            except BraidError as error:
                ended = "" if error.code is None else error.code.name
                outcomes[f"{ended}: {error}"] += 1


def _is_whole(server: FaultyServer, names: Sequence[str], doomed: str) -> None:
    """What was registered serves, what was deleted is gone."""
    with server.client() as client:
        (job,) = client.jobs(names[-1])
        for state in client.watch_job(job.id):
            job = state
        assert job.state.name == "READY", job
        for name in names:
            client.infer(name, {"x": ROW})
        states = {model.name: model.state.name for model in client.models()}
    assert doomed not in states, states
    assert set(states.values()) == {"SERVING"}, states


@contextmanager
def _running(
    threads: list[threading.Thread], stopping: threading.Event | None = None
) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        if stopping is not None:
            stopping.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
