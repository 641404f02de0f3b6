"""The CPU image: built from the Dockerfile, confined as docker-compose.yml says, used from outside.

Run by ``make image-test``; takes some minutes. Skips with one line where images cannot be built.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime
import pytest
import yaml

from braid_client import Client
from tests import ROOT
from tests.clock import until
from tests.deploy.image import IMAGE, CannotBuild, Workshop, as_compose_says
from tests.models.small import small_cnn

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

TOKEN = "a-token-of-this-test-alone-0123456789"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SERVICE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][
    "braid"
]
STARTS_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class Container:
    workshop: Workshop
    name: str

    def do(self, *command: str, limit_s: float = 120) -> str:
        """Run a command of podman on it."""
        verb, *rest = command
        return self.workshop.run("podman", verb, self.name, *rest, limit_s=limit_s)

    def shell(self, script: str) -> str:
        """Run a shell script inside."""
        return self.do("exec", "sh", "-c", script)

    def address(self, port: int) -> str:
        """host:port of this machine that leads to a port inside."""
        return self.do("port", str(port)).strip()

    def client(self) -> Client:
        return Client(self.address(8001), token=TOKEN)

    def http(self, path: str, body: object = None) -> bytes:
        """Answer of the HTTP port to GET, or to POST of JSON, with the token."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = Request(f"http://{self.address(8002)}{path}", data, headers)
        with urlopen(request, timeout=30) as response:
            answer: bytes = response.read()
            return answer

    def await_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return self.http("/readyz").strip() == b"ready"
            except OSError:
                return False

        until(is_ready, STARTS_WITHIN_S, lambda: self.do("logs"))


@pytest.fixture(scope="module")
def workshop() -> Iterator[Workshop]:
    """The image, built."""
    folder = Path(tempfile.mkdtemp(prefix="braid-image-", dir="/var/tmp"))
    try:
        shop = Workshop.open(folder)
    except CannotBuild as problem:
        shutil.rmtree(folder)
        pytest.skip(str(problem))
    try:
        shop.base()
        shop.wheels()
        shop.build(COMMIT)
        yield shop
    finally:
        shop.close()


@pytest.fixture(scope="module")
def container(workshop: Workshop) -> Container:
    """A container as docker-compose.yml says, ready."""
    secret = workshop.folder / "admin_token"
    secret.write_text(TOKEN)
    secret.chmod(0o644)
    options, command = as_compose_says(SERVICE, {"admin_token": secret})
    workshop.run("podman", "run", "--detach", "--name", "braid", *options, IMAGE, *command)
    running = Container(workshop, "braid")
    running.await_ready()
    return running


def test_it_runs_confined(container: Container) -> None:
    status = dict(
        line.split(":\t", 1) for line in container.shell("cat /proc/1/status").splitlines()
    )
    assert status["Uid"].split() == ["10001"] * 4
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == "1"

    mounts = {}
    for line in container.shell("cat /proc/mounts").splitlines():
        _, place, kind, how, *_ = line.split()
        mounts[place] = kind, how.split(",")
    assert "ro" in mounts["/"][1]
    assert mounts["/tmp"][0] == "tmpfs"
    assert "size=4194304k" in mounts["/tmp"][1]
    assert container.shell("touch /x 2>/dev/null || echo refused").strip() == "refused"
    assert container.shell("command -v gcc || echo none").strip() == "none"


def test_it_says_what_it_was_built_from(container: Container) -> None:
    metrics = container.http("/metrics").decode()

    (info,) = [line for line in metrics.splitlines() if line.startswith("braid_build_info{")]
    assert f'commit="{COMMIT}"' in info


def test_openvino_takes_part_in_it(container: Container) -> None:
    program = "from braid.engine.program.openvino_library import load; print(load().get_version())"

    assert container.do("exec", "python", "-c", program).startswith("20")


def test_a_model_registered_from_outside_answers_as_onnxruntime_does(
    container: Container, tmp_path: Path
) -> None:
    path = small_cnn(tmp_path / "cnn.onnx")
    x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    session = onnxruntime.InferenceSession(path)
    (name,) = [each.name for each in session.get_outputs()]
    (wanted,) = session.run(None, {"x": x})

    with container.client() as client:
        client.register("cnn", path, batch_sizes=[1, 2], wait=True)
        answer = client.infer("cnn", {"x": x}).outputs[name]
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3, 16, 16], "data": x.ravel().tolist()}
    rest = json.loads(container.http("/v2/models/cnn/infer", {"inputs": [tensor]}))

    np.testing.assert_allclose(answer, wanted, rtol=1e-3, atol=1e-4)
    assert b"cnn" in container.http("/console/models/cnn")
    (output,) = rest["outputs"]
    np.testing.assert_array_equal(np.float32(output["data"]), np.asarray(answer).ravel())


def test_its_health_check_answers_in_time_while_every_core_is_busy(container: Container) -> None:
    limit_s = float(SERVICE["healthcheck"]["timeout"].removesuffix("s"))
    spin = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        for _ in range(3):
            began = monotonic()
            container.workshop.run("podman", "healthcheck", "run", container.name)
            assert monotonic() - began < limit_s
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_it_stops_in_time_and_serves_its_models_after_a_restart(container: Container) -> None:
    container.do("stop", limit_s=90)
    assert container.do("inspect", "--format", "{{.State.ExitCode}}").strip() == "0"

    container.do("start")
    container.await_ready()
    with container.client() as client:
        assert client.model("cnn").state.name == "SERVING"
        client.infer("cnn", {"x": np.zeros((1, 3, 16, 16), np.float32)})
