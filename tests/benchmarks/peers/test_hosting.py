"""Process trees end whole; peers say what they are; an environment has what it asks for."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers.hosting import keeper
from benchmarks.peers.hosting.contract import Contender, find_contenders, read_peer
from benchmarks.peers.hosting.environments import python_of, versions_in
from tests.clock import until

DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ready, started = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        os.write(started, b"1")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(ready, 1)
if sys.argv[2] == "stay":
    time.sleep(600)
"""


def keep(tmp_path: Path, what: str) -> tuple[subprocess.Popen[bytes], int]:
    """A keeper of a process with a daemon, and that daemon's id. SIGTERM they ignore."""
    file = tmp_path / "pid"
    tree = [sys.executable, "-c", DAEMON, str(file), what]
    start = f"import sys; sys.path[0] = {str(Path(keeper.__file__).parent)!r}; import keeper; "
    start += "keeper.GRACE_S = 0.2; sys.exit(keeper.main(int(sys.argv[1]), sys.argv[2:]))"
    process = subprocess.Popen([sys.executable, "-c", start, str(os.getpid()), *tree])
    until(lambda: file.exists() and file.read_text())
    return process, int(file.read_text())


@pytest.mark.parametrize("what", ["stay", "end"])
def test_a_daemon_that_ignores_sigterm_ends_with_its_server(tmp_path: Path, what: str) -> None:
    process, daemon = keep(tmp_path, what)

    if what == "stay":
        process.terminate()

    assert process.wait(timeout=120) == (143 if what == "stay" else 0)
    assert not psutil.pid_exists(daemon)


SERVER = """
import os, signal, sys, time
child = os.fork()
if not child:
    time.sleep(600)

def end(number, frame):
    open(sys.argv[1], "w").write(str(os.waitpid(child, os.WNOHANG)))
    os._exit(0)

signal.signal(signal.SIGTERM, end)
open(sys.argv[2], "w").close()
time.sleep(600)
"""


def test_a_server_ends_before_the_processes_that_it_started(tmp_path: Path) -> None:
    seen, up = tmp_path / "seen", tmp_path / "up"
    command = [sys.executable, keeper.__file__, str(os.getpid()), sys.executable, "-c", SERVER]
    process = subprocess.Popen([*command, str(seen), str(up)])
    until(up.exists)

    process.terminate()

    assert process.wait(timeout=120) == 143
    assert seen.read_text() == "(0, 0)"  # its child was alive


TOLD_WHILE_STARTING = """
import os, signal, sys, time
sys.path[0] = sys.argv[1]
import keeper
start = keeper.subprocess.Popen

def started(command, **options):
    print(start(command, **options).pid, flush=True)
    signal.raise_signal(signal.SIGTERM)

keeper.subprocess.Popen = started
sys.exit(keeper.main(os.getppid(), ["sleep", "600"]))
"""


def test_a_server_ends_whose_keeper_is_told_to_end_while_it_starts_it() -> None:
    folder = str(Path(keeper.__file__).parent)
    command = [sys.executable, "-c", TOLD_WHILE_STARTING, folder]

    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)

    assert done.returncode == 143
    assert not psutil.pid_exists(int(done.stdout))


def peer(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "peer.toml").write_text(text)
    return folder


def test_a_peer_is_one_contender_unless_it_names_several(tmp_path: Path) -> None:
    peer(tmp_path / "one", 'models = ["identity"]')
    peer(tmp_path / "two", '[contenders]\nb = []\na = ["--x"]')

    found = {each.name: each for each in find_contenders(servers=tmp_path)}

    assert list(found) == ["one", "b", "a"]
    assert found["a"].arguments == ("--x",)
    assert found["one"].serves("identity")
    assert not found["one"].serves("squeezenet")
    assert [c.name for c in find_contenders(["two"], tmp_path)] == ["b", "a"]
    with pytest.raises(ValueError, match="no peer named three"):
        find_contenders(["three", "a"], tmp_path)


def test_a_peer_that_breaks_the_contract_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="colour"):
        read_peer(peer(tmp_path / "odd", "colour = 1"))


def test_peers_of_the_repository_pin_every_package() -> None:
    for contender in find_contenders():
        assert (contender.folder / "serve.py").exists()
        if contender.requirements:
            for line in contender.requirements.read_text().splitlines():
                assert not line or line.startswith("#") or "==" in line


@pytest.mark.slow
def test_an_environment_is_made_once_and_has_what_is_asked_for(tmp_path: Path) -> None:
    folder = peer(tmp_path / "some", "")
    (folder / "requirements.txt").write_text("packaging==26.3\n")
    contender = Contender("some", folder)

    python = python_of(contender, tmp_path / "cache")

    assert versions_in(python)["packaging"] == "26.3"
    made = python.parents[1].stat().st_mtime_ns
    assert python_of(contender, tmp_path / "cache") == python
    assert python.parents[1].stat().st_mtime_ns == made
    code = "import packaging, sys; print(packaging.__file__.startswith(sys.prefix))"
    seen = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout == "True\n"
