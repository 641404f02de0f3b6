"""Runs that another runtime leaves to the plan."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from braid.core.errors import PreconditionFailed
from braid.engine.worker.models import ReadyExecutable
from braid.engine.worker.requests import begin_run


class Refusing:
    """A runtime that takes no negative numbers."""

    def run_into(self, inputs: Any, outputs: Any) -> None:
        if bool((inputs["x"] < 0).any()):
            raise PreconditionFailed("it takes no negative numbers")
        outputs["y"].fill(1)


class Plan:
    def begin(self, inputs: Any, outputs: Any) -> Any:
        outputs["y"].fill(2)
        return SimpleNamespace(finish=lambda: outputs)


def test_what_a_runtime_refuses_runs_under_the_plan_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ready = ReadyExecutable(
        "d" * 64, cast(Any, None), cast(Any, Plan()), cast(Any, None), cast(Any, Refusing())
    )
    y = {"y": np.zeros(1)}

    def answer(x: float) -> float:
        run = begin_run(cast(Any, None), ready, {"x": np.array([x])}, y, is_finite=True)
        return float(run.finish()["y"].item())

    assert [answer(x) for x in (1.0, -1.0, 1.0, -1.0, -2.0)] == [1, 2, 1, 2, 2]
    (record,) = caplog.records
    assert vars(record)["digest"] == "d" * 64  # the server's log makes it the model's name
    assert "no negative numbers" in record.getMessage()
