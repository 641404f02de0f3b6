"""One request, or a worker that somebody stopped, keeps a device from everybody else.

A Loop in a local function takes as many trips as its input says. A great number held the device for
ever, although its caller had a deadline of two seconds. So did a worker process that was stopped.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from braid_client import BraidError, Client, DeadlineExceeded
from campaigns.regressions.scripts import FaultyServer
from tests.models.endless import FOREVER, endless
from tests.models.small import identity

DEADLINE_S = 2.0
SOON_S = 20.0
"""The device is free two seconds after the deadline; the rest is for a slow machine."""

ONES = np.ones((1, 4), np.float32)


def check(server: FaultyServer) -> None:
    """Another model answers soon after, and the server says that it is ready."""
    server.start()
    files = {
        "endless": endless(server.folder / "endless.onnx"),
        "other": identity(server.folder / "other.onnx"),
    }
    with server.client() as client:
        for name, file in files.items():
            client.register(name, file, batch_sizes=[1], planner="sequential", wait=True)
        np.testing.assert_allclose(client.infer("endless", {"x": ONES}).outputs["y"], np.sin(ONES))

        _is_refused_in_time(client)
        _others_go_on(client)

        stopped = server.worker_pid
        os.kill(stopped, signal.SIGSTOP)
        _others_go_on(client)
        assert server.worker_pid != stopped
    assert server.http("/readyz")


def _is_refused_in_time(client: Client) -> None:
    began = time.monotonic()
    try:
        client.infer("endless", {"x": FOREVER}, timeout_s=DEADLINE_S)
    except DeadlineExceeded:
        assert time.monotonic() - began < SOON_S
        return
    raise AssertionError("the model is to be endless")


def _others_go_on(client: Client) -> None:
    row = np.ones((1, 3), np.float32)
    until = time.monotonic() + SOON_S
    while time.monotonic() < until:
        try:
            client.infer("other", {"x": row}, timeout_s=1.0)
        except BraidError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the device does not answer")
