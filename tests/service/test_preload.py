import json
import os
import shlex
import subprocess
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from braid.core.errors import StartupError
from braid.server.cli.main import main
from braid.server.models.preload import model_file
from tests import ROOT
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.server_process import BRAID, ServerProcess


@pytest.mark.slow
def test_models_named_at_start_serve_once_the_server_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    small_cnn(folder / "model.onnx")
    with ServerProcess(tmp_path / "store", BRAID_PRELOAD=f"cnn={folder}").start() as server:
        with server.client() as client:
            assert client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)}).version == "1"
        address = ("--address", server.address)
        assert main(["health", "--json", *address]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["status"], told["devices"][0]["device"]) == ("serving", "cpu")
        assert set(told["devices"][0]) > {"cores", "nearest_ns", "farthest_ns"}
        assert main(["health", *address]) == 0
        assert main(["health", "--service", "cnn", *address]) == 0
        assert main(["health", "--service", "none", *address]) == 1
    assert main(["health", *address]) == 1
    out, err = capsys.readouterr()
    assert out == "serving\nserving\n"
    assert err.splitlines()[0].endswith("not found")


@pytest.mark.ci
def test_one_line_starts_a_server_whose_log_says_how_to_call_it(
    tmp_path: Path, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (f"cnn={models['cnn']}",)
    server = ServerProcess(tmp_path / "store", arguments=arguments, BRAID_READY_MODELS="cnn,other")
    server.start()
    try:
        _, _, log = server.log.partition("takes requests")
        ready, *to_try = log.splitlines()[:3]
        facts = dict(word.split("=", 1) for word in shlex.split(ready) if "=" in word)
        assert facts["grpc"] == server.address
        assert facts["rest"] == f"http://{server.http_address}/v2"
        assert facts["console"] == f"http://{server.http_address}/"
        assert facts["models"] == "other"
        command, curl = (line.removeprefix("  | ") for line in to_try)
        assert main(shlex.split(command)[1:]) == 0
        assert "y" in capsys.readouterr().out
        answer = subprocess.run(["sh", "-c", curl], capture_output=True, check=True).stdout
        (output,) = json.loads(answer)["outputs"]
        with server.client() as client:
            zeros = client.infer("cnn", np.zeros((1, 3, 16, 16), np.float32)).outputs["y"]
        assert np.array_equal(np.array(output["data"], np.float32), zeros.reshape(-1))
        with pytest.raises(HTTPError, match="503"):
            server.http("/readyz")
        server.import_ahead(models["embedding"])
        with server.client() as client:
            client.register("other", models["embedding"], batch_sizes=[1], wait=True)
            assert until(lambda: main(["health", "--address", server.address]) == 0)
            assert server.http("/readyz").strip() == "ready"
            client.delete("other")
            assert until(lambda: main(["health", "--address", server.address]) == 1)
    finally:
        server.end()


@pytest.mark.parametrize(
    ("arguments", "variable", "problem"),
    [
        (["net=absent.onnx"], "", "absent.onnx: no such file"),
        pytest.param(
            *(["net=setup.py", "net=setup.py"], "", "net=setup.py: net is given twice"),
            marks=pytest.mark.ci,
        ),
        ([], "BRAID_READY_MODELS=a/b", "BRAID_READY_MODELS=a/b: model name 'a/b' is not"),
        ([], "BRAID_THREADS=1000", "BRAID_THREADS=1000 is more than the"),
    ],
)
def test_what_cannot_serve_ends_the_start_with_one_line(
    arguments: list[str], variable: str, problem: str, tmp_path: Path
) -> None:
    usual = {"BRAID_STORE": str(tmp_path), "BRAID_TRESHOLD": "1", "BRAID_SERVICE_HOST": "10.0.0.1"}
    given = dict([variable.split("=")]) if variable else {}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}

    ended = subprocess.run(
        [*BRAID, "serve", "--grpc-port", "0", "--http-port", "0", *arguments],
        cwd=ROOT,
        env={**ours, **usual, **given},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    warning, error = ended.stderr.splitlines()
    assert "variable=BRAID_TRESHOLD" in warning
    assert error.startswith(f"braid serve: {problem}")
    assert ended.returncode == 1


def test_a_folder_must_hold_one_model(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"0 \.onnx files"):
        model_file(str(tmp_path))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.onnx").touch()
    assert model_file(str(tmp_path)) == tmp_path / "sub/a.onnx"
    (tmp_path / "b.onnx").touch()
    with pytest.raises(StartupError, match=r"2 \.onnx files"):
        model_file(str(tmp_path))
