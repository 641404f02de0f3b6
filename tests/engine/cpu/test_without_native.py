"""Where the part in C was not built: said at the build, and by whatever would have used it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid.engine.cpu.device_key import cpu_device_key
from braid.engine.cpu.native import find
from braid.engine.cpu.segments import find_runner
from braid.engine.onednn.library import find_onednn
from tests import ROOT


@pytest.fixture
def not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(find, "__file__", str(tmp_path / "find.py"))
    for function in (find.find_native, find_runner):
        function.cache_clear()
    yield
    for function in (find.find_native, find_runner):
        function.cache_clear()


@pytest.mark.usefixtures("not_built")
@pytest.mark.skipif(find_onednn() is None, reason="own kernels need oneDNN's package")
def test_one_warning_names_what_is_lost_and_what_to_install(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert [find_runner(), find_runner(), find.find_native()] == [None] * 3

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("Winograd", "apt-get install gcc", "pip install", "make setup"):
        assert words in record.getMessage()


@pytest.mark.skipif(find_runner() is None, reason="the part in C was not built")
def test_its_measurements_are_not_those_of_a_device_that_has_it(
    request: pytest.FixtureRequest,
) -> None:
    with_it = cpu_device_key(2, 2)
    request.getfixturevalue("not_built")

    assert cpu_device_key(2, 2) == f"{with_it}:native=none"


@pytest.mark.usefixtures("not_built")
def test_what_was_built_from_other_sources_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (ROOT / "engine/cpu/native").glob("*.[chs]*"):
        shutil.copy(path, tmp_path)
    if not list(tmp_path.glob("*.so")):
        pytest.skip("the part in C was not built")
    assert find.find_native() is not None

    with (tmp_path / "vectors.h").open("a") as source:
        source.write("/* changed */")
    find.find_native.cache_clear()

    assert find.find_native() is None
    assert "make setup" in caplog.text


def test_a_build_without_a_compiler_is_loud_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext"]
    places = [f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"]

    ran = subprocess.run(
        [*command, *places], cwd=ROOT, env={**os.environ, "CC": "no-such-compiler"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert "WITHOUT its part in C" in ran.stderr
    assert "apt-get install gcc" in ran.stderr
    assert list(tmp_path.rglob("*.so")) == []
