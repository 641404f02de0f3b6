"""Deleting a model must not hurt another one of the same bytes that is being registered.

One name after the other is registered with the same file, and its predecessor is deleted at a
moment that moves from cycle to cycle through the registration: from before its upload to after its
model serves. Whatever serves must answer.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from braid_client import Client
from campaigns.regressions.scripts import FaultyServer
from tests.models.small import small_cnn

CYCLES = 60
LONGEST_DELAY_S = 0.12
"""A registration of known bytes serves after some 20 to 100 ms."""

ROW = np.ones((1, 3, 16, 16), np.float32)


def check(server: FaultyServer) -> None:
    """Register and delete in many cycles; each model answers as the first one did."""
    file = small_cnn(server.folder / "model.onnx")
    server.start()
    server.import_ahead(file)
    with server.client() as client, server.client() as deleter:
        client.register("m0", file, batch_sizes=[1, 2], wait=True)
        expected = client.infer("m0", {"x": ROW}).outputs["y"]
        for cycle in range(1, CYCLES + 1):
            delay_s = LONGEST_DELAY_S * (cycle % 20) / 20
            doomed = threading.Thread(target=_delete, args=(deleter, f"m{cycle - 1}", delay_s))
            doomed.start()
            job = client.register(f"m{cycle}", file, batch_sizes=[1, 2])
            doomed.join()
            _await_end(client, job.id)
            for rows in (1, 2):
                given = {"x": np.repeat(ROW, rows, axis=0)}
                answer = client.infer(f"m{cycle}", given, timeout_s=20).outputs["y"]
                np.testing.assert_allclose(answer[:1], expected, rtol=1e-4, atol=1e-5)


def _delete(client: Client, name: str, delay_s: float) -> None:
    time.sleep(delay_s)
    client.delete(name)


def _await_end(client: Client, job_id: str) -> None:
    for job in client.watch_job(job_id):
        assert job.state.name not in ("FAILED", "CANCELLED"), job.message
