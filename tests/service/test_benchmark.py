"""``braid benchmark``: a table with the other runtimes, figures as JSON, and what it cannot do."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid.server.cli.main import main
from tests.models.small import open_length
from tests.service.server_process import ServerProcess

QUICK = ("--seconds", "0.01", "--clients", "1,2")


@pytest.fixture(scope="module")
def server(
    shared: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Has the model ``long`` as well."""
    file = open_length(tmp_path_factory.mktemp("benchmark") / "long.onnx")
    yield shared.register({"long": file})
    with shared.client() as client:
        client.delete("long")


@pytest.mark.ci
def test_the_served_model_stands_beside_the_other_runtimes(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_STORE", str(server.store))
    assert main(["benchmark", "cnn", *QUICK, "--address", server.address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    shown = [line.split()[:2] for line in lines if line.split()[:1] in (["1"], ["2"])]
    runtimes = ("braid", "onnxruntime", "openvino")
    assert shown == [[count, runtime] for count in ("1", "2") for runtime in runtimes]
    assert not [line for line in lines if "takes no part" in line]

    assert main(["benchmark", "cnn", *QUICK, "--json", "--address", server.address]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [[each["clients"], each["runtime"]] for each in figures] == [
        [count, runtime] for count in (1, 2) for runtime in runtimes
    ]
    for each in figures:
        assert 0 < each["p50_us"] <= each["p99_us"]
        assert 0 < each["requests_per_second"] <= each["clients"] * 1e6 / each["p50_us"] * 3


def test_without_a_file_the_served_model_is_measured_alone(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing, broken = tmp_path / "missing.onnx", tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    words = {
        missing: f"takes no part: {missing} is not there",
        broken: "onnxruntime takes no part: ",
    }
    for file, said in words.items():
        arguments = ["long", "--input-shape", "x=1,5", "--file", str(file), *QUICK]
        assert main(["benchmark", *arguments, "--json", "--address", server.address]) == 0
        told = capsys.readouterr()
        assert {each["runtime"] for each in json.loads(told.out)} == {"braid"}
        assert said in " ".join(told.err.split())


def test_inputs_that_the_model_has_not_are_refused(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["benchmark", "cnn", "--input-shape", "z=1", "--address", server.address]
    assert main(arguments) == 1
    assert "cnn has no input 'z'" in capsys.readouterr().err
