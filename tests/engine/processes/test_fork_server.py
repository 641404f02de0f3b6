"""The process that all others are forked from: what it holds, and whose end it shares."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from braid.engine.processes.child import ChildEnd, ChildProcess, Streams
from braid.engine.processes.fork_server import ForkServer
from tests import ROOT
from tests.clock import until

TELLS = "tests.engine.processes.tells"
SLEEPS = "tests.engine.processes.sleeps"
ENVIRONMENT = {"PATH": "/bin", "TOLD": "yes"}


async def started(module: str = SLEEPS, *arguments: str) -> ChildProcess:
    return await ChildProcess.start(module, *arguments, environment=ENVIRONMENT)


async def told(*arguments: str, **given: int) -> dict[str, object]:
    """What a child says of itself."""
    child = await ChildProcess.start(TELLS, *arguments, environment=ENVIRONMENT, given=given)
    end = await child.wait()
    assert end.status == 0, end.output
    told: dict[str, object] = json.loads(end.output)
    return told


def gone(processes: Sequence[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=120)
    return not alive


async def test_the_server_runs_one_thread_and_no_library_holds_a_descriptor() -> None:
    """A lock that another thread holds is never released in a child."""
    async with await started() as child:
        server = psutil.Process(child.pid).parent()
        assert server is not None
        assert server.pid == ForkServer.running().pid
        await asyncio.to_thread(until, lambda: _waits(server))

        assert server.num_threads() == 1
        # The streams, its parent, its requests, and of the child: the process and the report.
        assert len(os.listdir(f"/proc/{server.pid}/fd")) == 3 + 2 + 2
        libraries = " ".join(mapped.path for mapped in server.memory_maps())
        assert "libtorch" in libraries
        assert "onnxruntime" in libraries
        assert "libcuda.so" not in libraries


def _waits(process: psutil.Process) -> bool:
    return Path(f"/proc/{process.pid}/wchan").read_text().startswith("poll_schedule")


async def test_a_child_has_what_it_was_told_and_nothing_else(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        other = os.dup(file.fileno())
        facts = await told("--first", "second", file=file.fileno())
        os.close(other)

    assert facts["arguments"] == ["--file=3", "--first", "second"]
    assert facts["environment"] == ENVIRONMENT
    assert facts["descriptors"] == [0, 1, 2, 3]
    assert facts["folder"] == os.getcwd()
    assert facts["cores"] == sorted(os.sched_getaffinity(0))
    assert facts["leads a session"]
    assert TELLS in str(facts["command"])


async def test_children_do_not_share_random_numbers() -> None:
    first, second = await told(), await told()

    assert first["random"] != second["random"]


async def test_children_of_one_server_end_apart_and_say_how() -> None:
    async with await started() as stays:
        ends = []
        for how in ("0", "3", "-11"):
            child = await started("tests.engine.processes.ends", how)
            assert psutil.Process(stays.pid).ppid() == ForkServer.running().pid
            ends.append((await child.wait()).status)

        assert ends == [0, 3, -11]
        assert stays.is_alive


async def test_an_error_of_a_child_is_printed_and_ends_it_with_1() -> None:
    end = await (await started("tests.engine.processes.ends", "an error")).wait()

    assert end.status == 1
    assert "ValueError: invalid literal" in end.output


async def test_children_end_with_their_server_and_another_server_takes_its_place() -> None:
    child = await started()
    server = psutil.Process(ForkServer.running().pid)

    server.kill()
    end = await child.wait()

    assert end == ChildEnd(-signal.SIGKILL, "", end.was_memory_short)
    async with await started() as other:
        assert psutil.Process(other.pid).ppid() not in {server.pid, 1}
    assert gone([server])


async def test_a_start_outlives_a_server_that_has_closed_its_socket_and_not_ended() -> None:
    server = ForkServer.running()
    server._requests.shutdown(
        socket.SHUT_RDWR
    )  # as the kernel does before a killed process is gone

    async with await started() as child:
        assert psutil.Process(child.pid).ppid() != server.pid


async def test_a_start_that_is_cancelled_leaves_no_child() -> None:
    server = psutil.Process(ForkServer.running().pid)
    before = set(server.children())
    for turns in range(12):
        starting = asyncio.ensure_future(started())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await (await starting).end()

    await asyncio.to_thread(until, lambda: set(server.children()) <= before)


async def test_what_libraries_read_when_they_load_makes_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with await started() as child:
        monkeypatch.setenv("OMP_TEST_OF_SERVERS", "1")
        async with await started() as other:
            assert psutil.Process(other.pid).ppid() != psutil.Process(child.pid).ppid()
        assert child.is_alive


STARTS = """
import asyncio, sys
from braid.engine.processes.child import ChildProcess
async def main():
    child = await ChildProcess.start(sys.argv[1], environment={})
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""


def test_server_and_children_end_with_the_process_that_started_them() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, SLEEPS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        server = child.parent()
        assert server is not None
        parent.kill()

    assert gone([child, server])


LOADS_FOR_EVER = """
import os, pathlib, time
pathlib.Path(os.environ["OMP_TEST_LOADING"]).touch()
time.sleep(600)
"""


def test_a_server_that_is_loading_torch_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(LOADS_FOR_EVER)
    loading = tmp_path / "loading"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, SLEEPS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_TEST_LOADING": str(loading)},
    ) as parent:
        until(loading.exists)
        (server,) = psutil.Process(parent.pid).children()
        parent.kill()

    assert gone([server])


async def test_a_server_that_cannot_load_its_libraries_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    starts = (ChildProcess.start(SLEEPS, environment={}, streams=each) for each in Streams)
    failures = await asyncio.gather(*starts, return_exceptions=True)

    assert len(failures) == len(Streams)
    for failure in failures:
        assert isinstance(failure, OSError)
        assert "the fork server ended" in str(failure)
