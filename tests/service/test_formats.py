from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from braid_client import JobFailed
from tests.engine.importer.test_tried_samples import table
from tests.service.server_process import ServerProcess


@pytest.mark.ci
def test_samples_say_what_a_model_takes_that_an_import_cannot_guess(
    shared: ServerProcess, tmp_path: Path
) -> None:
    made, samples = table()
    path = tmp_path / "table.onnx"
    path.write_bytes(made.SerializeToString())
    (expected,) = onnxruntime.InferenceSession(path).run(None, dict(samples))

    with shared.client() as client:
        client.register("table", path, planner="sequential", wait=True)
        untried = client.model("table")
        client.register(
            *("table", path), planner="sequential", batch_sizes=[4], samples=samples, wait=True
        )
        tried = client.model("table")
        result = client.infer("table", samples)
        client.delete("table")
        narrow = {"ids": samples["ids"].astype(np.int32)}
        with pytest.raises(JobFailed, match="is int32, the model takes int64"):
            client.register("narrow", path, samples=narrow, wait=True)

    assert any("register it with samples" in text for text in untried.warnings)
    assert not any("not verified" in text for text in tried.warnings)
    assert [plan.samples for plan in tried.schedules] == [6]
    np.testing.assert_allclose(result.outputs["y"], expected, rtol=1e-5, atol=1e-6)
