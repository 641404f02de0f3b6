"""Runs the documentation: ``console`` blocks with a prompt, and Python programs, page by page.

A line of a console block that begins with ``$ `` is a command; the lines below it must appear in
its output, ``…`` standing for anything. ``braid serve ... &`` becomes a server on free ports, with
the same models; the addresses that pages name become its. Python blocks are programs.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.slow

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ("quick-start.md", "registering.md", "clients.md", "formats.md", "library.md")
README = "../README.md"
HUGGING_FACE = "hugging-face.md"


@dataclass
class Session:
    """One reader at one terminal, with a server if the page starts one or needs one."""

    folder: Path
    server: ServerProcess

    def run_page(self, page: str) -> int:
        """Run every marked block of a page; returns how many there were."""
        blocks = FENCE.findall((ROOT / "docs" / page).read_text())
        marked = [(kind, text) for kind, text in blocks if kind in ("console", "python")]
        for kind, text in marked:
            if kind == "python":
                self.python(text)
            else:
                for command, expected in commands(text):
                    self.shell(command, expected)
        return len(marked)

    def python(self, program: str) -> None:
        path = self.folder / "example.py"
        path.write_text(self.here(program))
        self.execute([sys.executable, str(path)], program)

    def shell(self, command: str, expected: list[str]) -> None:
        if command.startswith("braid serve"):
            models = [word for word in shlex.split(command) if "=" in word]
            self.server.start(arguments=models)
            output = self.server.log
        elif command.startswith("kill"):
            assert self.server.stop() == 0
            output = ""
        else:
            output = self.execute(["bash", "-ec", self.here(command)], command)
        for line in expected:
            parts = (re.escape(" ".join(part.split())) for part in self.here(line).split("…"))
            assert re.search(".*".join(parts), " ".join(output.split())), (
                f"{command}\nshould print {line!r}, printed:\n{output}"
            )

    def here(self, text: str) -> str:
        """Text with the addresses of this server, if it was started."""
        if not self.server.is_started:
            return text
        text = text.replace("127.0.0.1:8001", self.server.address)
        return text.replace("127.0.0.1:8002", self.server.http_address)

    def execute(self, command: list[str], shown: str) -> str:
        tools = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "BRAID_ADDRESS": self.here("127.0.0.1:8001"),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        ran = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{shown}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block with the lines that it should print."""
    command = ""
    expected: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), []
        elif line.strip():
            expected.append(line)
    if command:
        yield command, expected


def test_every_page_with_marked_blocks_is_run() -> None:
    marked = {
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if any(kind in ("console", "python") for kind, _ in FENCE.findall(page.read_text()))
    }
    assert marked == {*PAGES, HUGGING_FACE}


def test_the_quick_start_works_as_written(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as server:
        assert Session(tmp_path, server).run_page("quick-start.md") > 5


def test_the_front_page_works_as_written(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", folder=tmp_path) as server:
        session = Session(tmp_path, server)
        assert session.run_page(README) == 4
        _, _, to_try = server.log.partition("  | {")
        session.execute(["sh", "-c", "{" + to_try.splitlines()[0]], "the line for curl")


@pytest.mark.skipif(find_spec("transformers") is None, reason="pip install transformers")
def test_an_export_of_hugging_face_works_as_written(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as server:
        assert Session(tmp_path, server).run_page(HUGGING_FACE) == 5


def test_the_other_pages_work_as_written_one_after_the_other(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store").start() as server:
        for page in PAGES[1:]:
            assert Session(tmp_path, server).run_page(page) > 0
