"""Uploads and watched jobs; ``braid`` is the sync client, then the async one."""

import hashlib
import io
import threading
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from braid_client import (
    Client,
    DeadlineExceeded,
    InvalidArgument,
    Job,
    JobFailed,
    JobNotFound,
    JobState,
    PermissionDenied,
    PlannerOptions,
    Unavailable,
)
from braid_client.upload import CHUNK_BYTES, chunks_of, upload_parts
from braid_client.wire import admin_pb2
from braid_client.wire import admin_pb2 as server_pb2
from tests.client.conftest import FAST
from tests.client.fake_server import REQUEST_ID, FakeServer

State = server_pb2.Job.State
MODEL = b"\x08\x08:\xff\xff\xff\x7f\0" * (10 * CHUNK_BYTES // 32)  # two and a half chunks


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    return path


@pytest.mark.parametrize("given", [Path, str, bytes, memoryview])
def test_a_model_arrives_in_chunks_with_its_checksum(
    braid: Any, server: FakeServer, model_file: Path, given: type
) -> None:
    source = model_file if given is Path else str(model_file) if given is str else given(MODEL)

    braid.register("net", source)

    (upload,) = server.uploads
    assert upload.data == MODEL
    assert [len(chunk) for chunk in upload.chunks] == [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES // 2]
    assert upload.sha256 == hashlib.sha256(MODEL).hexdigest()


def test_the_header_says_how_to_schedule(braid: Any, server: FakeServer) -> None:
    braid.register(
        "net",
        b"x",
        batch_sizes=[1, 4],
        planner=PlannerOptions("ios", max_group_ops=2, max_groups=5),
        input_shapes=[{"x": (1, 3, 48, 320)}, {"x": (1, 3, 48, 640)}],
        lengths=[16, 32],
        pad={"height": "repeat"},
        no_pad=True,
    )

    header = server.uploads[0].header
    assert (header.name, list(header.batch_sizes)) == ("net", [1, 4])
    assert header.format == server_pb2.RegisterModelHeader.FORMAT_ONNX
    assert (header.planner.name, header.planner.max_group_ops) == ("ios", 2)
    assert header.planner.max_groups == 5
    assert list(header.input_shapes["x"].dims) == [1, 3, 48, 320]
    (more,) = header.more_input_shapes
    assert list(more.shapes["x"].dims) == [1, 3, 48, 640]
    assert header.lengths == "16,32"
    assert (dict(header.pad), header.no_pad) == ({"height": "repeat"}, True)


def test_the_upload_reports_its_progress(braid: Any) -> None:
    seen: list[tuple[int, int]] = []

    braid.register("net", MODEL, on_upload=lambda sent, total: seen.append((sent, total)))

    assert [sent for sent, _ in seen] == [CHUNK_BYTES, 2 * CHUNK_BYTES, len(MODEL)]
    assert {total for _, total in seen} == {len(MODEL)}


def test_without_wait_the_job_is_answered_as_accepted(braid: Any, server: FakeServer) -> None:
    job = braid.register("net", b"x", planner="sequential")

    assert job == Job("job-1", "net", "1", JobState.QUEUED)
    assert not job.ended
    assert server.calls == ["RegisterModel"]


def test_waiting_reports_each_state_and_answers_the_last(braid: Any) -> None:
    seen: list[Job] = []

    job = braid.register("net", b"x", wait=True, on_progress=seen.append)

    assert [state.state for state in seen] == ["IMPORTING", "PROFILING", "READY"]
    assert [state.eta_s for state in seen[:2]] == [None, 2.0]
    assert (seen[1].done, seen[1].total) == (3, 6)
    assert job == seen[-1]
    assert job.ended


def test_waiting_keeps_that_the_file_was_registered_before(braid: Any, server: FakeServer) -> None:
    first = braid.register("net", b"x", wait=True)
    server.known_job = server.jobs[first.id]

    again = braid.register("net", b"x", wait=True)

    assert (first.already_registered, again.already_registered) == (False, True)


def test_waiting_for_a_job_that_fails_raises_its_reason(braid: Any, server: FakeServer) -> None:
    server.job_states = [server_pb2.Job(state=State.FAILED, message="not an ONNX file")]

    with pytest.raises(JobFailed, match=r"job job-1 of model 'net' failed: not an ONNX file") as e:
        braid.register("net", b"x", wait=True)

    assert e.value.job.state is JobState.FAILED


def test_waiting_for_a_model_that_serves_unscheduled_answers_the_job(
    braid: Any, server: FakeServer
) -> None:
    server.job_states = [server_pb2.Job(state=State.UNSCHEDULED, message="batch size 4: ...")]

    job = braid.register("net", b"x", wait=True)

    assert (job.state, job.message) == (JobState.UNSCHEDULED, "batch size 4: ...")
    assert job.ended
    assert job.serves


def test_a_watch_ends_with_a_state_of_a_later_version(braid: Any, server: FakeServer) -> None:
    server.job_states = [server_pb2.Job(state=cast(Any, 99), message="a state to come")]

    with pytest.raises(JobFailed, match="a state to come"):
        braid.register("net", b"x", wait=True)

    assert server.calls.count("WatchJob") == 1


def test_a_missing_file_is_an_os_error_and_nothing_is_sent(
    braid: Any, server: FakeServer, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        braid.register("net", tmp_path / "absent.onnx")
    assert server.calls == []


def test_a_failing_progress_callback_ends_the_upload_with_its_error(
    braid: Any, server: FakeServer
) -> None:
    def stop(sent: int, total: int) -> None:
        raise RuntimeError("stop it")

    with pytest.raises(RuntimeError, match="stop it"):
        braid.register("net", MODEL, on_upload=stop)
    assert server.uploads == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidArgument),
    ],
)
def test_an_upload_is_never_repeated(
    braid: Any, server: FakeServer, code: grpc.StatusCode, error: type[Exception]
) -> None:
    server.fails("RegisterModel", code)

    with pytest.raises(error, match="as scripted"):
        braid.register("net", MODEL)
    assert server.calls == ["RegisterModel"]


def test_an_upload_refused_midway_is_told_as_the_server_told_it(
    braid: Any, server: FakeServer
) -> None:
    server.fails("RegisterModel", grpc.StatusCode.PERMISSION_DENIED, "not you", times=40)

    for _ in range(40):  # grpc.aio loses the status in one of ten
        with pytest.raises(PermissionDenied, match="not you") as caught:
            braid.register("net", MODEL)
        assert caught.value.request_id == REQUEST_ID


def test_a_deadline_bounds_upload_and_wait_together(braid: Any, server: FakeServer) -> None:
    server.hold_watch = True

    with pytest.raises(DeadlineExceeded):
        braid.register("net", b"x", wait=True, timeout_s=0.5)


def test_a_watch_goes_on_through_restarts(braid: Any, server: FakeServer) -> None:
    job = braid.register("net", b"x")
    server.watch_cuts = [1, 0, 2]

    states = [state.state for state in braid.watch_job(job.id)]

    assert states == ["IMPORTING", "IMPORTING", "PROFILING", "IMPORTING", "PROFILING", "READY"]
    assert server.calls[1:] == ["WatchJob"] * 4


def test_a_watch_that_the_server_ends_early_is_taken_up_again(
    braid: Any, server: FakeServer
) -> None:
    job = braid.register("net", b"x")
    server.job_states = server.job_states[:1]

    watch = braid.watch_job(job.id)
    assert next(watch).state == "IMPORTING"
    server.job_states = []
    with pytest.raises(Unavailable, match="ended the watch before the job ended"):
        next(watch)
    assert server.calls[1:] == ["WatchJob"] * FAST.max_attempts


def test_a_watch_ends_at_other_errors(braid: Any, server: FakeServer) -> None:
    job = braid.register("net", b"x")
    server.watch_cuts = [1]
    server.watch_failure = grpc.StatusCode.INTERNAL

    with pytest.raises(Exception, match="restarting"):
        list(braid.watch_job(job.id))
    assert server.calls[1:] == ["WatchJob"]


def test_watching_a_job_that_is_not_there(braid: Any) -> None:
    with pytest.raises(JobNotFound, match="no job 'nothing'"):
        list(braid.watch_job("nothing"))


def test_jobs_are_listed_and_cancelled(braid: Any) -> None:
    braid.register("net", b"x")
    braid.register("other", b"x")

    assert braid.cancel_job("job-1").state is JobState.CANCELLED
    assert [(job.id, job.state) for job in braid.jobs("net")] == [("job-1", "CANCELLED")]
    assert len(braid.jobs()) == 2
    assert len(braid.jobs(limit=1)) == 1


def test_a_watch_that_is_dropped_ends_on_the_server(server: FakeServer) -> None:
    server.hold_watch = True
    with Client(server.address) as braid:
        job = braid.register("net", b"x")
        watch = braid.watch_job(job.id)
        next(watch)
        assert server.held.wait(120)
        watch.close()  # type: ignore[attr-defined]
    server.hold.set()


class CountingStream(io.BytesIO):
    largest = 0

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        self.largest = max(self.largest, size)
        return super().read(size)


def test_an_upload_reads_one_chunk_at_a_time() -> None:
    stream = CountingStream(MODEL)
    parts = upload_parts(admin_pb2.RegisterModelHeader(name="net"), chunks_of(stream), len(MODEL))

    assert next(parts).WhichOneof("part") == "header"
    assert stream.tell() == 0
    next(parts)
    assert stream.tell() == stream.largest == CHUNK_BYTES


def test_the_client_is_safe_to_share_between_threads(server: FakeServer) -> None:
    done: list[str] = []
    with Client(server.address) as braid:
        threads = [
            threading.Thread(target=lambda: done.append(braid.register("net", MODEL).id))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == ["job-1", "job-2", "job-3", "job-4"]
