import json
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from deploy.lock import locked
from deploy.sbom import bill
from tests import ROOT
from tests.supply_chain.__main__ import audit
from tests.supply_chain.delivered import allowed, closure, unlicensed


def test_everything_delivered_has_a_licence_of_the_allow_list() -> None:
    found = closure()

    assert {"torch", "onnxruntime", "grpcio", "sqlalchemy"} <= found.keys()
    assert "pytest" not in found
    assert unlicensed(found) == []


def test_a_licence_that_nobody_allowed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {**allowed(), "packages": {}}
    monkeypatch.setattr("tests.supply_chain.delivered.allowed", lambda: lists)

    lines = unlicensed({"shtab": distribution("shtab")})

    assert lines == [f"shtab {distribution('shtab').version}: MPL-2.0"]


def test_every_exception_has_a_reason() -> None:
    for entries in allowed().values():
        assert all(len(reason) >= len("permissive") for reason in entries.values())


def test_the_bill_names_each_distribution_once() -> None:
    made = bill([distribution("numpy"), distribution("numpy"), distribution("braid-serve")])

    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    assert [each["name"] for each in made["components"]] == ["braid-serve", "numpy"]
    assert made["components"][1]["purl"].startswith("pkg:pypi/numpy@")
    assert made["components"][1]["licenses"]


def test_the_bill_of_an_environment_needs_no_package_but_its_own() -> None:
    command = [sys.executable, "-I", "deploy/sbom.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert len(json.loads(printed)["components"]) > 50


def _pip(**download: Any) -> dict[str, Any]:
    return {
        "install": [{"metadata": {"name": "An_Example", "version": "1"}, "download_info": download}]
    }


def test_a_lock_holds_the_hash_of_every_file() -> None:
    hashed = _pip(url="https://x/a.whl", archive_info={"hashes": {"sha256": "ab"}})

    assert locked(hashed) == ["an-example==1 --hash=sha256:ab"]
    assert locked(_pip(url="file:///src", dir_info={})) == []
    with pytest.raises(ValueError, match="an-example has no SHA-256"):
        locked(_pip(url="https://x/a.whl"))


def _program(folder: Path, output: str) -> Path:
    path = folder / "pip-audit"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)
    return path


def test_a_known_vulnerability_is_named_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vulnerable = {"name": "rich", "version": "1", "vulns": [{"id": "P-1", "aliases": ["CVE-1"]}]}
    program = _program(tmp_path, json.dumps({"dependencies": [vulnerable]}))
    found = {"rich": distribution("rich")}

    assert audit(program, found) == ["rich 1: P-1"]
    lists = {**allowed(), "advisories": {"CVE-1": "not reached: no markup of callers is rendered"}}
    monkeypatch.setattr("tests.supply_chain.__main__.allowed", lambda: lists)
    assert audit(program, found) == []


@pytest.mark.parametrize("output", ["no route to host", '{"dependencies": []}'])
def test_without_a_service_one_line_says_so(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"rich": distribution("rich")}
    program = _program(tmp_path, output) if "{" not in output else tmp_path / "missing"

    assert audit(program, found) is None
    assert capsys.readouterr().out.count("\n") == 1
