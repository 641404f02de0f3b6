"""Pages of a model whose plans compete, and what they say after the decision."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import SEQUENTIAL, ContestRow
from braid.server.cli.main import main
from braid_client import InvalidArgument
from tests.clock import until
from tests.models.small import small_cnn
from tests.service.contests import let_compete
from tests.service.server_process import ServerProcess

pytestmark = pytest.mark.slow

ROW = {"x": np.ones((1, 3, 16, 16), np.float32)}
DECISION = (
    ContestRow(SEQUENTIAL, 53, 1.0, 1.0, 1.0, latency_us=200.0),
    ContestRow(ONNXRUNTIME, 21, 1.5, 1.4, 1.6, latency_us=300.0),
    ContestRow(OPENVINO, 32, 2.0, 1.9, 2.1, latency_us=400.0),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("contests")
    server = ServerProcess(folder / "store").start()
    try:
        with server.client() as client:
            path = small_cnn(folder / "cnn.onnx")
            client.register("cnn", path, batch_sizes=[1], wait=True)
        yield server
    finally:
        server.end()


def begin_again(server: ServerProcess, *plans: str, decision: tuple[ContestRow, ...] = ()) -> None:
    assert server.stop() == 0
    let_compete(server.store, *plans, is_decided=bool(decision), decision=decision)
    server.start()


def texts(server: ServerProcess, page: str) -> str:
    """Text of a page, blanks in place of elements."""
    return " ".join(re.sub(r"<[^>]*>", " ", server.http(f"/console/{page}")).split())


def row_that_serves(server: ServerProcess) -> str:
    """Row of the candidates' table with the mark, and no other has it."""
    rows = server.http("/console/models/cnn").partition("Candidates compared")[2].split("<tr>")
    (row,) = (row for row in rows if "serves now" in row)
    return row


def test_an_open_contest_is_shown_as_undecided_and_as_unasked_until_a_request_comes(
    server: ServerProcess,
) -> None:
    begin_again(server)

    before = texts(server, "models/cnn")
    assert re.search("(OpenVINO|own plan), undecided, no requests yet", before)
    assert "Figures here were measured at registration" in before
    assert "since then" not in before, "no pair was run"
    with server.client() as client:
        client.infer("cnn", ROW)
    after = texts(server, "models/cnn")
    assert re.search("(OpenVINO|own plan), undecided", after)
    assert "no requests yet" not in after


def test_a_decision_keeps_the_pairs_of_those_that_lost_and_figures_of_the_registration_stay(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_again(server, SEQUENTIAL, OPENVINO, ONNXRUNTIME, decision=DECISION)

    page = texts(server, "schedules/cnn/1/1")
    line = "0.20 ms; OpenVINO 0.40 ms; ONNX Runtime 0.30 ms; measured at the decision"
    assert f"{line}; decided after 53 pairs" in page
    assert "400 µs 32 2.000 1.900 to 2.100" in page
    assert "300 µs 21 1.500 1.400 to 1.600" in page
    assert "measured at registration (spread) 90 µs" in page
    with server.client() as client:
        (summary,) = client.model("cnn").schedules
        assert summary.measured_us == 90.0
        assert summary.contest is not None
        assert [row.latency_us for row in summary.contest.candidates] == [200.0, 400.0, 300.0]
    assert main(["schedule", "show", "cnn", "--address", server.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{line}; decided after 53 pairs" in shown
    assert shown.count("won in service") == 1
    model = texts(server, "models/cnn")
    assert "own plan, decided after 53 pairs, no requests yet" in model
    assert "since then runs in service choose: decided after 53 pairs." in model
    assert "one operator after another" in row_that_serves(server)

    with server.client() as client:
        for _ in range(40):
            client.infer("cnn", ROW)
        (summary,) = client.model("cnn").schedules
        assert summary.contest is not None
        first, *others = summary.contest.candidates
        ratios = [row.latency_us / first.latency_us for row in others]
        assert ratios == [pytest.approx(2.0), pytest.approx(1.5)], "of one measurement"
        assert first.share == 1.0
    assert "measured at the decision" not in texts(server, "schedules/cnn/1/1")


def test_a_pinned_plan_is_marked_among_the_candidates(server: ServerProcess) -> None:
    begin_again(server)
    with server.client() as client:
        client.pin_plan("cnn", ONNXRUNTIME)

        page = texts(server, "models/cnn")
        assert "ONNX Runtime, pinned" in page
        assert "Measured at registration; since then a plan was pinned." in page
        assert "ONNX Runtime" in row_that_serves(server)
        client.pin_plan("cnn", "")


def test_the_front_page_says_which_failures_and_whose_memory_it_counts(
    server: ServerProcess,
) -> None:
    texts(server, "")
    with server.client() as client, pytest.raises(InvalidArgument, match="axis 3 must be 16"):
        client.infer("cnn", {"x": np.ones((1, 3, 16, 15), np.float32)})
    until(lambda: "0.0 failures/s" not in texts(server, ""))

    page = texts(server, "")
    assert re.search(r" \d+\.\d failures/s", page)
    assert "Failures are all answers with an error, also for a faulty request" in page
    assert re.search(r"[KMG]iB of [\d.]+ [MG]iB private memory of server and workers", page)
