"""The hosted CI's workflows: by GitHub's schema, and by what they run."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests import ROOT
from tests.deploy.places import shipped

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RELEASE = ROOT / ".github/workflows/release.yml"


def jobs(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return read


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_github_accepts_it(path: Path) -> None:
    schema = json.loads(
        shipped("check_jsonschema", "builtin_schemas/vendor/github-workflows.json").read_text()
    )
    document = yaml.safe_load(path.read_text())
    document["on"] = document.pop(True)  # what YAML 1.1 reads it as

    errors = [error.message for error in Draft7Validator(schema).iter_errors(document)]
    assert errors == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_of_make_and_files_that_it_names_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:run|command): make ([a-z -]+)", path.read_text())
    assert {word for words in named for word in words.split()} <= targets
    for place in re.findall(r"(?:\./)?\.(?:github|ci)/[\w./-]+|tests/[\w./-]+", path.read_text()):
        assert (ROOT / place).exists(), place


def test_nothing_is_published_before_the_tests_and_the_installed_files_have_passed() -> None:
    of_release = jobs(RELEASE)

    assert of_release["tests"]["uses"] == "./.github/workflows/ci.yml"
    assert of_release["installed"]["needs"] == "dist"
    publishing = {
        name: job
        for name, job in of_release.items()
        if "write" in job.get("permissions", {}).values()
    }
    assert set(publishing) == {"publish", "image"}
    assert all(set(job["needs"]) == {"tests", "installed"} for job in publishing.values())


def test_the_client_is_published_before_the_server_that_requires_it() -> None:
    uploads = [step["with"] for step in jobs(RELEASE)["publish"]["steps"]][1:]

    assert [upload["packages-dir"] for upload in uploads] == ["dist/client", "dist/serve"]
    assert all(set(upload) == {"packages-dir"} for upload in uploads), "no password: trusted"


@pytest.mark.parametrize("project", ["pyproject.toml", "client/pyproject.toml"])
def test_the_classifiers_are_the_versions_of_python_that_are_tested(project: str) -> None:
    document = tomllib.loads((ROOT / project).read_text())
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(document["project"]["classifiers"]))

    runs = jobs(ROOT / ".github/workflows/ci.yml")["ci"]["strategy"]["matrix"]["include"]
    assert stated == [run["python"] for run in runs]
