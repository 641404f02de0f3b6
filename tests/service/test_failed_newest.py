from pathlib import Path

import pytest
import tritonclient.grpc as triton

from braid.server.cli.main import main
from braid_client import JobFailed
from tests.models.small import embedding, unknown_operator
from tests.service.server_process import ServerProcess


@pytest.mark.ci
def test_a_failed_newest_version_hides_nothing(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = embedding(tmp_path / "rows.onnx")
    server.start()
    server.import_ahead(model)
    address = ("--address", server.address)
    with server.client() as client, triton.InferenceServerClient(server.address) as oip:
        client.register("rows", model, batch_sizes=[1], wait=True)
        with pytest.raises(JobFailed):
            client.register("rows", unknown_operator(tmp_path / "bad.onnx"), wait=True)

        found = client.model("rows")
        assert (found.version, found.state.name, len(found.inputs)) == ("1", "SERVING", 1)
        assert client.model("rows", version="2").state.name == "FAILED"
        assert "version 1" in server.http("/console/models/rows")
        assert main(["infer", "rows", "--input", "ids=random", *address]) == 0
        assert main(["schedule", "show", "rows", *address]) == 0
        oip.load_model("rows")
        oip.unload_model("rows")
        assert not oip.is_model_ready("rows")
        oip.load_model("rows", config='{"max_batch_size": 2}')
        assert oip.is_model_ready("rows")
    assert "version 1" in capsys.readouterr().out
