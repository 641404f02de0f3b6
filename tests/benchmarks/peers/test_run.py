"""The whole command on a tiny model, servers and clients as processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.environment import REPOSITORY
from benchmarks.peers.__main__ import main
from benchmarks.peers.records import Case, Load, read_cases
from tests.benchmarks.peers.conftest import TINY
from tests.clock import until


def arguments(peers: str, tmp_path: Path, *more: str) -> list[str]:
    folders = ["--servers", "servers", "--model-files", "models", "--out", "out"]
    folders[1::2] = [str(tmp_path / name) for name in folders[1::2]]
    common = ["--quick", "--models", TINY, "--peers", peers, "--clients", "1,2", "--threads", "1"]
    return [*common, *folders, *more]


def cases(tmp_path: Path) -> dict[str, Case]:
    return {case.batching: case for case in read_cases(tmp_path / "out")}


@pytest.mark.ci
def test_peers_are_measured_under_every_load(
    model_files: Path, servers: Path, tmp_path: Path
) -> None:
    options = arguments("thirty_lines_ort,right", tmp_path, "--parts", "20")

    assert main([*options, "--batching", "dynamic"]) == 0

    case = cases(tmp_path)["dynamic"]
    seen = {(turn.contender, turn.load) for turn in case.turns}
    loads = [Load(clients=1), Load(clients=2), Load(part=0.2)]
    assert seen == {(name, load) for name in ("right", "thirty_lines_ort") for load in loads}
    assert all(turn.answers > 0 and not turn.errors for turn in case.turns)
    assert all(row.memory_mib > 5 for row in case.rows.values())
    assert all(row.first_answer_s is not None for row in case.rows.values())
    assert case.rows["right"].batch_sizes == (1, 2, 4, 8)
    assert case.rows["thirty_lines_ort"].batch_sizes == (1,)  # it has no batching
    assert f"### {TINY}, batching dynamic" in (tmp_path / "out" / "peers.md").read_text()


@pytest.mark.ci
def test_wrong_answers_and_a_crash_fail_their_contender_only(
    model_files: Path, servers: Path, tmp_path: Path
) -> None:
    peers = "right,wrong,dying"

    assert main(arguments(peers, tmp_path, "--parts", "", "--batching", "off")) == 1

    case = cases(tmp_path)["off"]
    by_name = {name: [t for t in case.turns if t.contender == name] for name in case.rows}
    assert sum(turn.errors.get("WRONG_ANSWER", 0) for turn in by_name["wrong"]) > 0
    assert "ended with status" in case.rows["dying"].failed
    assert len(by_name["right"]) == 2
    assert not any(turn.errors for turn in by_name["right"])


@pytest.mark.ci
def test_a_server_that_uses_processor_time_when_idle_is_up_only_when_loaded(
    model_files: Path, servers: Path, tmp_path: Path
) -> None:
    options = arguments("right,restless", tmp_path, "--parts", "", "--batching", "off")

    assert main([*options, "--rounds", "2"]) == 0

    starts = {
        name: (model_files / f"{TINY}.{name}.starts").read_text().count("start")
        for name in ("right", "spins")
    }
    case = cases(tmp_path)["off"]
    assert case.rows["restless"].idle_cores > 0.03
    assert starts == {"right": 1, "spins": 3}  # to know it, and for each round
    assert sum(turn.contender == "restless" for turn in case.turns) == 4


def test_what_is_there_is_left_out_when_resumed(
    model_files: Path, servers: Path, tmp_path: Path
) -> None:
    options = arguments("right", tmp_path, "--parts", "", "--batching", "off")
    main(options)
    before = cases(tmp_path)["off"]

    main([*options, "--resume"])

    assert cases(tmp_path)["off"] == before


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_all_processes(
    model_files: Path, servers: Path, tmp_path: Path, number: signal.Signals
) -> None:
    options = arguments("right,thirty_lines_ort", tmp_path, "--seconds", "600")
    command = [sys.executable, "-m", "benchmarks.peers", *options]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=REPOSITORY, stderr=file)
    until(lambda: "starting right" in log.read_text())
    tree = psutil.Process(process.pid).children(recursive=True)

    os.kill(process.pid, number)

    assert process.wait(timeout=120) != 0
    assert len(tree) >= 3  # the client program, the keeper of the first server, that server
    until(lambda: not any(map(is_running, tree)))


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
