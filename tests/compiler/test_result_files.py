"""Schedules and measurements as files: what is damaged is missing, and what is stored stays."""

import errno
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braid.compiler.result_files import ResultFiles, ScheduleFile
from braid.core.measurement import StageLatency
from tests.compiler.results import MODEL, graph, schedule

OLD = 1.0  # seconds since 1970


@pytest.fixture
def files(tmp_path: Path) -> ResultFiles:
    return ResultFiles(tmp_path)


def file_of(root: Path, batch_size: int = 1) -> Path:
    return root / "schedules" / MODEL / f"{schedule(batch_size).key.id}.json"


def log_of(root: Path) -> Path:
    """Only file of measurements."""
    (path,) = (root / "measurements").iterdir()
    return path


def latencies(*names: str, latency_us: float = 1.0) -> dict[str, StageLatency]:
    return {name: StageLatency(latency_us, 0.1, 5) for name in names}


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "notes").touch()


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def point_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def take_another_key(path: Path) -> None:
    path.write_bytes(file_of(path.parents[2], batch_size=4).read_bytes())


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip_a_bit,
    "cut off": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "its end cut off": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "one line": lambda path: path.write_bytes(b"\n"),
    "no text": lambda path: path.write_bytes(b"\xff" * 100),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "the schedule of another key": take_another_key,
    "a folder": replace_by_a_folder,
    "a pipe": replace_by_a_pipe,
    "a link to itself": point_to_itself,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_schedule_is_missing_and_is_made_again(
    files: ResultFiles, tmp_path: Path, damage: str
) -> None:
    one, four = schedule(1), schedule(4)
    files.put_schedule(one, graph("conv", "pool"))
    files.put_schedule(four)
    DAMAGES[damage](file_of(tmp_path))

    assert files.find_schedule(one.key) is None
    assert files.find_graph(one) is None
    assert files.schedules_of(MODEL) == [four]
    files.put_schedule(one, graph("conv", "pool"))
    assert files.schedules_of(MODEL) == [one, four]
    assert files.find_graph(one) == graph("conv", "pool")


def test_each_flipped_bit_of_a_schedule_counts_as_damage(
    files: ResultFiles, tmp_path: Path
) -> None:
    files.put_schedule(schedule(), graph("conv", "pool"))
    path = file_of(tmp_path)
    content = path.read_bytes()

    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        assert files.find_schedule(schedule().key) is None, place


def test_a_crash_while_a_schedule_is_written_leaves_the_one_before(
    files: ResultFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_schedule(schedule(latency_us=5.0))
    part = file_of(tmp_path).with_suffix(".json.part")
    part.write_bytes(b"half of a sche")  # of a process that was killed

    assert files.schedules_of(MODEL) == [schedule(latency_us=5.0)]
    files.put_schedule(schedule(latency_us=3.0))
    assert files.schedules_of(MODEL) == [schedule(latency_us=3.0)]
    assert not part.exists()


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_what_was_there(
    files: ResultFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_schedule(schedule(latency_us=5.0))
    files.put_latencies("cpu-a", latencies("s1"))

    def some_bytes(file: int, content: memoryview, offset: int) -> int:
        monkeypatch.setattr(os, "pwrite", no_space)
        return whole(file, content[:10], offset)

    whole = os.pwrite
    puts: list[Callable[[], None]] = [
        lambda: files.put_schedule(schedule(latency_us=3.0)),
        lambda: files.put_latencies("cpu-a", latencies("s2")),
    ]
    for put in puts:
        monkeypatch.setattr(os, "pwrite", some_bytes)
        with pytest.raises(OSError, match="No space left"):
            put()
    monkeypatch.undo()

    assert files.schedules_of(MODEL) == [schedule(latency_us=5.0)]
    assert files.all_latencies("cpu-a") == {"s1": 1.0}
    assert [path.suffix for path in file_of(tmp_path).parent.iterdir()] == [".json"]
    files.put_latencies("cpu-a", latencies("s3"))
    assert files.all_latencies("cpu-a") == {"s1": 1.0, "s3": 1.0}


def test_a_torn_measurement_is_dropped_and_those_after_it_are_kept(
    files: ResultFiles, tmp_path: Path
) -> None:
    files.put_latencies("cpu-a", latencies("s1", "s2"))
    path = log_of(tmp_path)
    content = path.read_bytes()
    last_bytes = len(content.splitlines(keepends=True)[-1])

    for cut in range(1, last_bytes):
        path.write_bytes(content[:-cut])

        assert files.all_latencies("cpu-a") == {"s1": 1.0}
        files.put_latencies("cpu-a", latencies("s3"))
        whole = ["s1", "s2", "s3"] if cut == 1 else ["s1", "s3"]  # only the end of the line is lost
        assert list(files.all_latencies("cpu-a")) == whole


def test_a_damaged_measurement_is_dropped_alone(files: ResultFiles, tmp_path: Path) -> None:
    files.put_latencies("cpu-a", latencies(*(f"s{number}" for number in range(5))))
    path = log_of(tmp_path)

    flip_a_bit(path)

    assert files.all_latencies("cpu-a") == dict.fromkeys(("s0", "s1", "s3", "s4"), 1.0)


@pytest.mark.parametrize("damage", ["empty", "no text", "a folder", "a pipe", "a link to itself"])
def test_measurements_in_no_usable_file_are_made_again(
    files: ResultFiles, tmp_path: Path, damage: str
) -> None:
    files.put_latencies("cpu-a", latencies("s1"))
    DAMAGES[damage](log_of(tmp_path))

    assert files.all_latencies("cpu-a") == {}
    files.put_latencies("cpu-a", latencies("s2"))
    assert files.all_latencies("cpu-a") == {"s2": 1.0}


def test_measurements_of_another_device_under_this_name_count_for_none(
    files: ResultFiles, tmp_path: Path
) -> None:
    files.put_latencies("cpu-a", latencies("s1"))
    first = log_of(tmp_path)
    content = first.read_bytes()
    first.unlink()
    files.put_latencies("cpu-b", latencies("s2"))

    log_of(tmp_path).write_bytes(content)

    assert files.all_latencies("cpu-b") == {}


def test_the_last_measurement_of_a_signature_counts_and_comes_last(files: ResultFiles) -> None:
    files.put_latencies("cpu-a", latencies("s1", "s2", "s3"))
    files.put_latencies("cpu-a", latencies("s1", latency_us=2.0))

    assert list(files.all_latencies("cpu-a").items()) == [("s2", 1.0), ("s3", 1.0), ("s1", 2.0)]


def _append(root: Path, number: int) -> None:
    files = ResultFiles(root)
    for count in range(50):
        files.put_latencies("cpu-a", latencies(f"{number}-{count}"))
        files.put_schedule(schedule(latency_us=1.0 + number))
        if count % 10 == 0:  # write the file of measurements anew, without the old one
            with pytest.MonkeyPatch.context() as past:
                past.setattr(time, "time", lambda: OLD)
                files.put_latencies("cpu-a", latencies("old"))
            files._forget_latencies(schedule(2))


def test_processes_that_store_at_the_same_time_lose_nothing(
    files: ResultFiles, tmp_path: Path
) -> None:
    files.put_file(ScheduleFile.of(schedule(2), OLD))
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_append, args=(tmp_path, number)) for number in range(4)]

    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 4
    names = {f"{number}-{count}" for number in range(4) for count in range(50)}
    assert files.all_latencies("cpu-a").keys() == names
    (stored, _) = files.schedules_of(MODEL)
    assert stored in [schedule(latency_us=1.0 + number) for number in range(4)]


def test_many_schedules_and_measurements_are_found_by_their_keys(files: ResultFiles) -> None:
    models = [f"{number:064x}" for number in range(100)]
    for model in models:
        for size in (8, 1):
            files.put_schedule(schedule(size, model=model))
    files.put_latencies("cpu-a", latencies(*(f"s{number}" for number in range(20_000))))

    assert files.schedules_of(models[42]) == [schedule(size, model=models[42]) for size in (1, 8)]
    assert files.schedules_of("ff" * 32) == []
    assert len(files.all_latencies("cpu-a")) == 20_000


def test_only_what_was_measured_up_to_a_schedule_is_measured_again(files: ResultFiles) -> None:
    files.put_latencies("cpu-a", latencies("before"))
    files.put_latencies("cpu-b", latencies("elsewhere"))
    files.put_schedule(schedule(), graph("conv", "pool"))
    files.put_latencies("cpu-a", latencies("after"))

    files.ask_again([schedule()], "it is slower")

    marked = files.find_schedule(schedule().key)
    assert marked is not None
    assert (marked.is_asked, marked.provenance.again) == (True, "it is slower")
    assert files.find_graph(marked) == graph("conv", "pool")
    assert files.all_latencies("cpu-a") == {"after": 1.0}
    assert files.all_latencies("cpu-b") == {"elsewhere": 1.0}


def test_what_an_earlier_version_stored_for_a_state_of_the_cores_is_left_alone(
    files: ResultFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.put_schedule(schedule())
    (path,) = tmp_path.rglob("*.json")
    head, *lines, _, _ = path.read_bytes().split(b"\n")
    document = json.loads(head)
    document["key"]["state"] = "far"
    body = b"\n".join((json.dumps(document).encode(), *lines))
    checksum = f'"{hashlib.sha256(body).hexdigest()}"'.encode()
    far = path.with_name("0" * 24 + ".json")
    far.write_bytes(b"\n".join((body, checksum, b"")))

    assert files.schedules_of(MODEL) == [schedule()]
    assert far.exists()
    assert not caplog.records
