"""Artefacts damaged on the disk: noticed when they are loaded, shown, repaired by the same file."""

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from braid.core.errors import DamagedArtefact
from braid.core.program import PlanToRun, ProgramKey
from braid.core.tensor import TensorType
from braid.engine.link.messages import DescribeProgram, FindFacts
from braid.server.devices.device import Device, DeviceEvents
from braid_client import Client, FailedPrecondition
from tests.models.small import embedding, identity, small_cnn
from tests.server.devices.fake_worker import OPTIONS, FakeWorker
from tests.server.jobs.fakes import template, write_artefact
from tests.service.server_process import ServerProcess

INPUTS: dict[str, dict[str, NDArray[Any]]] = {
    "cnn": {"x": np.ones((1, 3, 16, 16), np.float32)},
    "rows": {"ids": np.ones((1, 4), np.int64)},
    "same": {"x": np.ones((1, 3), np.float32)},
}


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def state_of(client: Client, name: str) -> tuple[str, str]:
    model = client.model(name)
    return model.state.name, model.message


@pytest.fixture
def lost() -> list[tuple[str, str]]:
    """Digests of the models that the device lost, and why."""
    return []


@pytest.fixture
def device(lost: list[tuple[str, str]]) -> Iterator[Device]:
    events = DeviceEvents(damaged=lambda _, digest, error: lost.append((digest, str(error))))
    worker = cast(Any, FakeWorker(at_once=True))
    device = Device("cpu", OPTIONS, events=events, make_link=lambda *_: worker)
    yield device
    device.arena.close()


def program_of(digest: str) -> ProgramKey:
    return ProgramKey(digest, (("x", TensorType("FP32", (1, 8))),))


async def test_a_fresh_worker_that_cannot_load_a_model_serves_the_others(
    device: Device, lost: list[tuple[str, str]], tmp_path: Path
) -> None:
    worker = cast(FakeWorker, device.link)
    ready = {}
    for digest in ("good", "bad"):
        write_artefact(tmp_path / digest, digest, template())
        device.keep(digest)
        await device.load(digest, tmp_path / digest)
        ready[digest] = await device.prepare(PlanToRun(program_of(digest)))
    worker.models.clear()
    worker.executables.clear()
    worker.damaged.add("bad")

    await device._replay(device.link)

    assert (await device.run(ready["good"], 0)).compute_us == 1
    with pytest.raises(DamagedArtefact, match="register the same file again"):
        await device.run(ready["bad"], 0)
    for asked in (
        device.describe(program_of("bad")),
        device.ask(DescribeProgram(program_of("bad"))),
        device.ask(FindFacts(program_of("bad"))),
    ):
        with pytest.raises(DamagedArtefact, match="register the same file again"):
            await asked
    assert [digest for digest, _ in lost] == ["bad"]
    worker.damaged.clear()
    await device.load("bad", tmp_path / "bad")  # repaired
    again = await device.prepare(PlanToRun(program_of("bad")))
    assert (await device.run(again, 0)).compute_us == 1


@pytest.mark.ci
def test_a_damaged_model_says_so_and_is_repaired_by_its_file(
    server: ServerProcess, tmp_path: Path
) -> None:
    files = {
        "cnn": small_cnn(tmp_path / "cnn.onnx"),
        "rows": embedding(tmp_path / "rows.onnx"),
        "same": identity(tmp_path / "same.onnx"),
    }
    artefacts = {
        name: server.store / "artefacts" / sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
    }
    with server.start().register(files).client() as client:
        answers = {name: client.infer(name, INPUTS[name]).outputs for name in files}
    server.stop()
    flip_a_byte(artefacts["cnn"] / "weights.safetensors")
    shutil.rmtree(artefacts["rows"])

    server.start()
    with server.client() as client:
        states = {name: state_of(client, name) for name in files}
        with pytest.raises(FailedPrecondition, match=r"damaged.*register the same file again"):
            client.infer("cnn", INPUTS["cnn"])
        client.infer("same", INPUTS["same"])
        repaired = client.register(
            "cnn", files["cnn"], batch_sizes=[1], planner="sequential", wait=True
        )
        elsewhere = client.register(
            "rows2", files["rows"], batch_sizes=[1], planner="sequential", wait=True
        )
        client.register("rows", files["rows"], batch_sizes=[1], planner="sequential", wait=True)
        after = {name: client.infer(name, INPUTS[name]).outputs for name in files}
        known = [(model.name, model.version, model.state.name) for model in client.models()]

    state, message = states["same"]
    assert state == "SERVING"
    assert not message
    assert states["cnn"][0] == states["rows"][0] == "FAILED"
    assert "weights.safetensors was changed" in states["cnn"][1]
    assert "cannot be read" in states["rows"][1]
    assert (repaired.version, elsewhere.version) == ("1", "1")
    assert known == [(name, "1", "SERVING") for name in ("cnn", "rows", "rows2", "same")]
    for name, outputs in answers.items():
        for output, array in outputs.items():
            np.testing.assert_allclose(after[name][output], array, rtol=1e-4, atol=1e-5)
