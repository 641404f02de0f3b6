"""Requests of random lengths, several at once: every answer is ONNX Runtime's on it alone."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from braid_client import Client, JobState
from tests.models.of_any_length import BATCHED, MORE, MOST, AnyLength, Array
from tests.service.server_process import ServerProcess

TOLERANCE = 1e-4
"""Error of an answer relative to the output's largest element."""

EXACT = ("masked_attention", "masked_mean", "positions", "causal_attention")
"""Models that padding does not change."""

OPEN_LENGTHS = {of.__name__: of() for of in (*BATCHED, *MORE)}
SOME = ("masked_attention", "batch_statistics", "reversed_sequence")
CLIENTS = 4
IN_A_ROW = 10  # requests for one model, whose lengths may share batches
MANY_ROWS = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is served, and ONNX Runtime's session on its file."""

    name: str
    drawn: AnyLength
    session: onnxruntime.InferenceSession

    def difference(self, client: Client, inputs: Mapping[str, Array]) -> str:
        """Send a request; say how the answer differs from the session's, nothing if it does not."""
        answers = client.infer(self.name, dict(inputs), timeout_s=120.0).outputs
        outputs = [output.name for output in self.session.get_outputs()]
        shapes = {name: array.shape for name, array in inputs.items()}
        for output, right in zip(outputs, self.session.run(outputs, dict(inputs)), strict=True):
            answer = answers[output]
            if (answer.dtype, answer.shape) != (right.dtype, right.shape):
                return f"{self.name} of {shapes}: {output} is {answer.dtype} {answer.shape}"
            error = np.abs(answer.astype(np.float64) - right).max()
            allowed = TOLERANCE * np.abs(right).max() if right.dtype.kind == "f" else 0
            if not error <= allowed:
                return f"{self.name} of {shapes}: {output} is off by {error:.2e}"
        return ""


@pytest.mark.parametrize(
    ("names", "count", "most"),
    [
        pytest.param(SOME, 120, 12, id="some"),
        pytest.param(OPEN_LENGTHS, 360, 12, id="all", marks=pytest.mark.ci),
        pytest.param(OPEN_LENGTHS, 10_000, MOST, id="many", marks=pytest.mark.slow),
    ],
)
def test_requests_of_any_length_are_answered_as_each_alone(
    server: ServerProcess, names: Collection[str], count: int, most: int, tmp_path: Path
) -> None:
    server.start()

    with server.client() as client, ThreadPoolExecutor(CLIENTS) as threads:
        subjects = register(client, server, {name: tmp_path / f"{name}.onnx" for name in names})

        def ask(number: int) -> str:
            rng = np.random.default_rng([count, number])
            subject = subjects[number // IN_A_ROW % len(subjects)]
            rows = int(rng.integers(1, MANY_ROWS + 1))
            length = min(most, 1 + int(rng.exponential(most / 4)))  # short ones come more often
            return subject.difference(client, subject.drawn.inputs(rng, rows, length))

        differences = [text for text in threads.map(ask, range(count)) if text]

    assert not differences, differences[:20]


def register(client: Client, server: ServerProcess, files: Mapping[str, Path]) -> list[Subject]:
    for name, file in files.items():
        file.write_bytes(OPEN_LENGTHS[name].model.SerializeToString())
    server.import_ahead(*files.values())
    options: dict[str, Any] = {"batch_sizes": [1, 4], "planner": "sequential"}
    jobs = [
        client.register(name, file, pad={"length": "zeros"} if name in EXACT else {}, **options)
        for name, file in files.items()
    ]
    for job in jobs:
        *_, last = client.watch_job(job.id)
        assert last.state is JobState.READY, last.message
    return [
        Subject(name, OPEN_LENGTHS[name], onnxruntime.InferenceSession(file))
        for name, file in files.items()
    ]
