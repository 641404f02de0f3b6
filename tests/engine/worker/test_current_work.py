"""What a device thread does can be asked and ended from another thread."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braid.core.errors import RunStopped
from braid.engine.importer.host.report import MODEL_FILE
from braid.engine.link.messages import WorkerStatus
from braid.engine.program.engines import EnginePlace
from braid.engine.program.onnxruntime_session import OnnxSession
from braid.engine.runtime.stopping import check_stopped, stop_signal
from braid.engine.runtime.yielding import in_thread, no_pause
from braid.engine.worker.process.current_work import CurrentWork
from tests.models.endless import FOREVER, endless


@pytest.fixture(autouse=True)
def no_stop_signal_afterwards() -> Any:
    token = stop_signal.set(None)
    yield
    stop_signal.reset(token)


def spin() -> None:
    while True:
        check_stopped()
        time.sleep(0)


def ends(activity: CurrentWork, call: int, work: Callable[[], object], stop: int) -> None:
    """Do ``work`` for a call and stop one from another thread as soon as it runs."""

    def order() -> None:
        while activity.status().call != call:
            time.sleep(0)
        activity.stop(stop, "enough")

    thread = threading.Thread(target=order)
    thread.start()
    try:
        with pytest.raises(RunStopped, match="enough"), activity.running(call):
            work()
    finally:
        thread.join()
        activity.ended(call)


def test_a_run_is_stopped_between_its_steps_also_in_a_thread_of_its_own() -> None:
    activity = CurrentWork()

    ends(activity, 1, spin, stop=1)
    ends(activity, 2, lambda: in_thread(spin, no_pause), stop=2)

    with activity.running(3):
        check_stopped()  # what stopped the others is forgotten


def test_onnxruntime_ends_a_loop(tmp_path: Path) -> None:
    artefact = tmp_path
    model = endless(artefact / MODEL_FILE)
    session = OnnxSession(model, EnginePlace(1))
    forever, result = FOREVER, np.empty((1, 4), np.float32)
    activity = CurrentWork()

    ends(activity, 1, lambda: session.run({"x": forever}), stop=1)
    ends(activity, 2, lambda: session.run_into({"x": forever}, {"y": result}), stop=2)

    session.run_into({"x": np.ones((1, 4), np.float32)}, {"y": result})
    np.testing.assert_allclose(result, np.sin(np.ones((1, 4))), rtol=1e-6)


def test_a_call_that_is_stopped_before_it_begins_never_runs() -> None:
    activity = CurrentWork()
    activity.stop(2, "too late")

    with activity.running(1):
        check_stopped()
    activity.ended(1)
    with pytest.raises(RunStopped, match="too late"), activity.running(2):
        raise AssertionError("it ran")
    activity.ended(2)

    activity.stop(2, "it is over")
    with activity.running(3):
        check_stopped()


def test_other_work_is_stopped_apart_from_runs() -> None:
    activity = CurrentWork()
    activity.begin_work()
    activity.stop_step("enough")

    with activity.running(1):
        check_stopped()
    activity.ended(1)
    with pytest.raises(RunStopped, match="enough"):
        check_stopped()
    activity.begin_work()
    check_stopped()


def test_the_status_tells_what_runs_and_for_how_long() -> None:
    now = 0.0
    activity = CurrentWork(lambda: now)
    assert activity.status() == WorkerStatus()

    activity.begin_step()
    now = 2.0
    with activity.running(5):
        now = 3.0
        assert activity.status() == WorkerStatus(5, 1.0, 3.0)
    activity.ended(5)
    activity.rest()
    assert activity.status() == WorkerStatus()
