"""Drift on a real server: seen, shown, and answered by profiling again while the model serves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from braid.server.store.store import Store
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess


def claim_to_take(times: float, store_folder: Path) -> float:
    """Let the stored schedule say that it took so many times as long as it did; seconds."""
    store = Store.open(store_folder)
    try:
        (model,) = store.models()
        (schedule,) = store.schedules_of(model.sha256)
        measured_us = schedule.provenance.measured_us
        assert measured_us is not None
        claimed_us = measured_us * times
        seen = schedule.provenance
        claimed = replace(seen, measured_us=claimed_us, promoted=True, provisional=None)
        store.put_schedule(replace(schedule, provenance=claimed))
        return claimed_us * 1e-6
    finally:
        store.close()


@pytest.mark.slow
def test_a_plan_slower_than_its_profile_is_profiled_again_while_it_serves(tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "cnn.onnx", size=96)
    server = ServerProcess(
        tmp_path / "store", BRAID_DRIFT_SECONDS="0.5", BRAID_REPROFILE_ON_DRIFT="true"
    ).start()
    try:
        with server.client() as client:
            client.register("cnn", path, batch_sizes=[1], wait=True)
        assert server.stop() == 0
        claimed_s = claim_to_take(0.1, server.store)
        server.start()

        with server.client() as client:
            row = {"x": np.zeros((1, 3, 96, 96), np.float32)}

            def reprofiles() -> float:
                for _ in range(20):
                    client.infer("cnn", row)
                return server.metric("braid_reprofiles_total")

            until(reprofiles, why=lambda: server.http("/metrics"))
            job = client.jobs()[0]
            for state in client.watch_job(job.id):
                client.infer("cnn", row)  # serves all the while
                job = state
            assert job.state == "READY"
            (plan,) = client.model("cnn").schedules
        assert server.metric("braid_stage_measurements_total") > 0
        assert "a plan is slower than it was profiled" in server.log
        profiled_s = server.metric("braid_schedule_latency_seconds", model="cnn")
        # The new profile is the measure, unless the machine of the tests was too busy to make one.
        assert profiled_s != pytest.approx(claimed_s) or plan.provisional
    finally:
        server.end()


@pytest.mark.slow
def test_a_plan_faster_than_its_profile_is_to_be_made_again_in_idle_time(tmp_path: Path) -> None:
    path = small_cnn(tmp_path / "cnn.onnx", size=96)
    server = ServerProcess(tmp_path / "store", BRAID_DRIFT_SECONDS="0.5").start()
    try:
        server.import_ahead(path)
        with server.client() as client:
            client.register("cnn", path, batch_sizes=[1], planner="sequential", wait=True)
            jobs = client.jobs()
        assert server.stop() == 0
        claim_to_take(1000, server.store)
        server.start()

        with server.client() as client:
            row = {"x": np.zeros((1, 3, 96, 96), np.float32)}

            def provisional() -> str:
                for _ in range(20):
                    client.infer("cnn", row)
                return client.model("cnn").schedules[0].provisional

            assert "times as long as when it was measured" in until(provisional)
            assert client.jobs() == jobs, "this machine is not quiet, and others may serve"
            assert client.model("cnn").schedules[0].promoted
        assert "a plan is faster than it was profiled" in server.log
    finally:
        server.end()
