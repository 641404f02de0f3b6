import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.client.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server that the demo must not touch."""
    fake = FakeServer()
    yield fake
    fake.stop()


def start_demo(folder: Path, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder), **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "braid.server.cli.main", "demo", "--networks", "squeezenet"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def processes_of(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            yield process


def assert_nothing_is_left(folder: Path) -> None:
    assert list(processes_of(folder)) == []
    assert list(folder.glob("braid-demo-*")) == []


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.ci),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_cleans_up_and_no_other_server_is_touched(
    tmp_path: Path, server: FakeServer, number: signal.Signals
) -> None:
    demo = start_demo(tmp_path, BRAID_ADDRESS=server.address, BRAID_GRPC_PORT=str(server.port))
    assert demo.stdout is not None
    serving = next(line for line in demo.stdout if line.startswith("serving on"))
    assert server.address not in serving
    assert list(processes_of(tmp_path))

    demo.send_signal(number)
    _, err = demo.communicate(timeout=280)

    assert demo.returncode == 130
    assert "Traceback" not in err
    assert server.calls == []
    assert_nothing_is_left(tmp_path)


def test_a_server_that_does_not_start_is_exit_code_1_with_its_log(tmp_path: Path) -> None:
    demo = start_demo(tmp_path, BRAID_DEVICES="abacus")

    _, err = demo.communicate(timeout=280)

    assert demo.returncode == 1
    assert "BRAID_DEVICES='abacus' unknown device" in err
    assert err.splitlines()[-1] == "braid demo: the server ended at once, exit code 2"
    assert_nothing_is_left(tmp_path)


@pytest.mark.slow
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    demo = start_demo(tmp_path)

    out, err = demo.communicate(timeout=240)

    assert demo.returncode == 0, err
    heads = [line.split() for line in out.splitlines() if line.startswith("clients")]
    assert heads == [["clients", "runtime", "threads", "p50", "p99", "requests/s"]]
    assert re.search(r"^ *1 +braid ", out, re.MULTILINE)
    assert re.search(r"^ *1 +onnxruntime ", out, re.MULTILINE)
    assert all(len(line) <= 100 for line in (out + err).splitlines())
    assert out.splitlines()[-1].startswith("done in")
    assert_nothing_is_left(tmp_path)
