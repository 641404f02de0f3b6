import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import ROOT

CLIENT = ROOT / "client"
PROGRAM = """
import sys, braid_client
print(braid_client.__file__)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_sdk_loads_grpc_protobuf_and_numpy_only(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), "PYTHONSAFEPATH": "1"}

    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    place, loaded = run.stdout.splitlines()
    assert Path(place).parent == CLIENT / "braid_client"
    ours = {"braid", "benchmarks"}
    theirs = {"torch", "onnx", "onnxruntime", "pydantic", "rich", "sqlalchemy"}
    assert set(loaded.split()) & (ours | theirs) == set()
    assert {"grpc", "google", "numpy"} <= set(loaded.split())


def test_the_sdk_bounds_no_version_from_above() -> None:
    for name, bounds in _requirements().items():
        assert [bound for bound in bounds if not bound.startswith(">=")] == [], name


def test_generated_code_demands_no_more_than_the_sdk_requires() -> None:
    bounds = _requirements()

    for module in (CLIENT / "braid_client" / "wire").glob("*_pb2*.py"):
        code = module.read_text()
        if module.name.endswith("_grpc.py"):
            demanded = {"grpcio": re.findall(r"GRPC_GENERATED_VERSION = '(.+)'", code)[0]}
        else:
            demanded = {"protobuf": re.findall(r"# Protobuf Python Version: (.+)", code)[0]}
        for name, version in demanded.items():
            (lowest,) = bounds[name]
            assert _numbers(version) <= _numbers(lowest.removeprefix(">=")), module.name


def _requirements() -> dict[str, list[str]]:
    """The libraries that the SDK requires, each with the bounds of its version."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["bf16"]]
    parsed = (re.fullmatch(r"([\w-]+)(.*)", each) for each in required)
    return {found[1]: found[2].split(",") for found in parsed if found}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
