"""The console script, run in this process against the fake server."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from rich.cells import cell_len

from braid.core.schedule import Contender, Provenance
from braid.server.cli.main import main
from braid.server.settings import Settings
from braid_client.wire import admin_pb2
from tests import ROOT
from tests.client.fake_server import SCHEDULE, FakeServer, schedule_document

State = admin_pb2.Job.State
Braid = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08")  # the fake server looks at none of it
    return path


@pytest.fixture
def braid(
    server: FakeServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Braid:
    """Run ``braid ARGUMENTS`` and return its exit code, stdout and stderr."""
    monkeypatch.setenv("BRAID_ADDRESS", server.address)

    def run(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def spoken(text: str) -> str:
    """Text with every run of white space as one blank: columns do not matter."""
    return re.sub(r"\s+", " ", text)


def test_models_are_a_table_or_json(braid: Braid) -> None:
    code, out, err = braid("models")
    assert (code, err) == (0, "")
    assert "echo 1 serving 2.0 KiB x: FP32[batch, 3," in spoken(out)
    assert "cpu/1: stages by IOS, 1.00 ms" in out, "of an older server"

    assert braid("models", "--names") == (0, "echo\n", "")
    code, out, _ = braid("models", "--json")
    (model,) = json.loads(out)
    assert (model["name"], model["state"]) == ("echo", "SERVING")
    assert model["schedules"][0]["measured_us"] == 1000.0


def test_all_about_one_model_stands_behind_its_name(braid: Braid, server: FakeServer) -> None:
    echo = server.models["echo"]
    echo.warnings[:] = ["computes in float16"]
    echo.rows = "rows meet in operator 'all_rows' (ReduceMean)"
    echo.guessed_extents["length"] = 40
    text = "serves: own plan (greedy stages), 4.13 ms; OpenVINO 4.15 ms; undecided after 40 pairs"
    echo.schedules[0].contest.text = text
    assert "cpu/1: own plan, 4.13 ms\n" in braid("models")[1].replace(" \n", "\n")
    assert "computes in float16" not in braid("models")[1]
    assert "echo version 1: requests share no batch: rows meet in operator 'all_rows'" in spoken(
        braid("models")[1]
    )

    code, out, _ = braid("models", "echo")

    assert code == 0
    assert "echo version 1: 2.0 KiB, serving" in out
    assert "output x: FP32[batch, 3, 4, 4]" in out
    assert f"batch 1 on cpu {text}\n" in out
    assert "1 cpu fp16 1.50 ms (1.0%) 1.00 ms (2.0%) 1.500x (1.480 to 1.530)" in spoken(out)
    assert "warning: computes in float16" in out
    assert "scheduled for length=40, guessed" in spoken(out)
    code, _, err = braid("models", "nobody")
    assert (code, "nobody" in err) == (1, True)


def named_at_length(server: FakeServer) -> str:
    """Give the fake server a model whose names, shapes and reasons are long; return its name."""
    name, text = "n" * 128, "a reason without end, " * 20
    model = server.models[name] = admin_pb2.Model()
    model.CopyFrom(server.models["echo"])
    model.name, model.message, model.rows = name, text, text
    model.warnings[:] = [text, "w" * 300]
    model.inputs[0].name = "文" * 100  # two columns each
    for dim in range(9):
        model.inputs[0].shape.append(admin_pb2.Extent(symbol=f"a symbol of axis {dim}"))
    model.outputs[0].name = "o" * 200
    plan = model.schedules[0]
    plan.shapes, plan.promoted = "length=16," * 20, False
    plan.plan_id, plan.device, plan.best_other = "p" * 120, "cuda:0", "openvino"
    model.schedules.add().CopyFrom(server.models["echo"].schedules[0])
    return name


@pytest.mark.parametrize("columns", ["", "40", "300"])
def test_nothing_is_wider_than_a_hundred_columns(
    braid: Braid,
    server: FakeServer,
    model_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    name = named_at_length(server)
    candidates = [
        Contender(f"{planner}(r=3,s=8,join=group,gap=0.01,{number})", 1000.0 + number, 0.1, 9, 1.5)
        for number, planner in enumerate(["sequential", "lazy-ios", "q" * 120])
    ]
    candidates[1] = replace(candidates[1], also=("z" * 150, "y" * 150), remark="r " * 200)
    long = Provenance(candidates=tuple(candidates), reason="why " * 90, promoted=False)
    server.schedule = schedule_document(provenance=long)
    server.nodes = [admin_pb2.Node(id="n" * 90, address="a" * 90, device_keys=["k" * 200] * 3)]
    server.job_states[1].detail = "d" * 300
    server.job_states[-1].message = "m " * 300

    said = [
        braid(*command.split())
        for command in (
            f"register {name} {model_file} --wait",
            "models",
            f"models {name}",
            "jobs",
            "nodes",
            f"schedule show {name}",
            f"schedule diff {name} --against-batch 1",
        )
    ]

    for code, out, err in said:
        assert code == 0, err
        for line in (out + err).splitlines():
            assert cell_len(line) <= 100, line
    assert said[1][1].replace(" ", "").count("n") >= 128, "a name is wrapped and not cut"


def test_no_models_says_what_to_do(braid: Braid, server: FakeServer) -> None:
    server.models.clear()

    assert braid("models")[1] == "no models; register one: braid register NAME FILE --wait\n"
    assert braid("models", "--json")[1] == "[]\n"


def test_register_answers_with_the_job_and_how_to_follow_it(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    shape = "--input-shape=x=1,3,48,320"
    fp16 = ("--precision=fp16", "--accept-error=0.03")
    code, out, _ = braid(
        "register", "net", model_file, "--batch-sizes", "1,4", "--planner=sequential", shape, *fp16
    )

    assert code == 0
    assert "net version 1 is accepted as job job-1; follow it: braid jobs watch job-1\n" in out
    header = server.uploads[0].header
    assert (list(header.batch_sizes), header.planner.name) == ([1, 4], "sequential")
    assert list(header.input_shapes["x"].dims) == [1, 3, 48, 320]
    assert (header.precision, header.accepted_error) == ("fp16", 0.03)
    assert "WatchJob" not in server.calls


@pytest.mark.parametrize(
    ("options", "pad", "no_pad"),
    [
        (["--pad", "s=zeros", "--pad", "a=b=repeat"], {"s": "zeros", "a=b": "repeat"}, False),
        (["--no-pad"], {}, True),
    ],
)
def test_padding_is_asked_for_or_forbidden(
    braid: Braid,
    server: FakeServer,
    model_file: Path,
    options: list[str],
    pad: dict[str, str],
    no_pad: bool,
) -> None:
    braid("register", "net", model_file, *options)

    header = server.uploads[0].header
    assert (dict(header.pad), header.no_pad) == (pad, no_pad)


def test_repeated_input_shapes_are_several_shapes(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    shapes = ("x=1,16", "x=1,32", "scale=1", "x=1,64")
    braid("register", "net", model_file, *(f"--input-shape={one}" for one in shapes), "--lengths=8")

    header = server.uploads[0].header
    several = [header.input_shapes, *(more.shapes for more in header.more_input_shapes)]
    assert [list(one["x"].dims) for one in several] == [[1, 16], [1, 32], [1, 64]]
    assert [list(one["scale"].dims) for one in several] == [[1]] * 3
    assert header.lengths == "8"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lengths", "8,x"], "not integers between commas: '8,x'"),
        (["--lengths", "8,0"], "lengths start at 1"),
        (
            [f"--input-shape={one}" for one in ("x=1,8", "x=1,9", "x=1,7", "y=1", "y=2")],
            "there are 3 input shapes, but 2 of 'y'",
        ),
    ],
)
def test_shapes_that_cannot_be_meant_are_refused_before_the_upload(
    braid: Braid, server: FakeServer, model_file: Path, options: list[str], words: str
) -> None:
    code, _, error = braid("register", "net", model_file, *options)

    assert code > 0
    assert words in error
    assert not server.uploads


def test_samples_go_with_the_model(braid: Braid, server: FakeServer, model_file: Path) -> None:
    samples = model_file.with_name("samples.npz")
    samples.write_bytes(b"rows" * (1 << 19))

    code, _, _ = braid("register", "net", model_file, "--precision=auto", "--samples", samples)
    absent = braid("register", "net", model_file, "--samples", samples.with_name("absent.npz"))

    assert code == 0
    assert server.uploads[0].header.precision == "auto"
    assert server.uploads[0].samples == samples.read_bytes()
    assert absent[0] == 1
    assert "absent.npz" in absent[2]


def test_the_same_registration_again_is_said_to_be_one(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    server.known_job = admin_pb2.Job(id="job-7", model="net", version="3", state=State.READY)

    code, out, _ = braid("register", "net", model_file)
    as_json = braid("register", "net", model_file, "--json")

    assert code == 0
    assert out == (
        "net version 3 is already registered: this file with these options; nothing has changed\n"
    )
    (job,) = json.loads(as_json[1])
    assert (job["state"], job["already_registered"]) == ("READY", True)
    assert "already registered" in as_json[2]


@pytest.mark.parametrize(
    ("new", "labels", "is_known", "said"),
    [
        ("3", {}, False, "version 3 gets the requests that name no version as soon as it serves; "
         "take them back:\n  braid serving net --label stable=2"),
        ("1", {}, True, "requests that name no version stay with version 2; give them to version "
         "1:\n  braid serving net --label stable=1"),
        ("3", {"stable": 1}, False, "requests that name no version stay with version 1; give them "
         "to version 3:\n  braid serving net --label stable=3"),
        ("3", {"stable": 3}, False, ""),
        ("2", {}, True, ""),
    ],
)  # fmt: skip
def test_a_registration_says_who_gets_the_traffic(
    new: str,
    labels: dict[str, int],
    is_known: bool,
    said: str,
    braid: Braid,
    server: FakeServer,
    model_file: Path,
) -> None:
    state = State.READY if is_known else State.QUEUED
    server.known_job = admin_pb2.Job(id="job-7", model="net", version=new, state=state)
    server.labels = labels
    for version in ("1", "2"):
        model = server.models[f"net {version}"] = admin_pb2.Model()
        model.CopyFrom(server.models["echo"])
        model.name, model.version = "net", version

    _, out, _ = braid("register", "net", model_file)

    assert ("requests that name no version" in out) == bool(said)
    assert not said or f"\n{said}\n" in f"\n{out}"


def test_waiting_shows_each_phase_then_the_schedules(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    server.models["net"] = server.models["echo"]
    server.models["net"].warnings[:] = ["computes in float16"]

    code, out, err = braid("register", "net", model_file, "--wait")

    assert code == 0
    assert "warning: computes in float16\n" in out
    assert "importing\nmeasuring · 3 of 6 · 2 s left\nready" in err
    assert "net version 1 is ready\n" in out
    row = "1 cpu fp16 1.50 ms (1.0%) 1.00 ms (2.0%) 1.500x (1.480 to 1.530)"
    facts = "plan plan-1; error 0.002 on seeded inputs; 2 stages, 3 groups"
    serves = "batch 1 on cpu serves: stages by IOS, 1.00 ms"
    assert f"{row} {serves} batch 1 on cpu: {facts}" in spoken(out)


def test_a_job_that_fails_is_exit_code_1_and_one_line(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    server.job_states = [admin_pb2.Job(state=State.FAILED, message="two\nlines")]

    code, out, err = braid("register", "net", model_file, "--wait")

    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "braid register: job job-1 of model 'net' failed: two lines"


def test_nodes_are_listed_with_their_jobs(braid: Braid, server: FakeServer) -> None:
    server.nodes = [
        admin_pb2.Node(
            id="node-a",
            address="10.0.0.1:8001",
            device_keys=["cpu:X:threads=2"],
            version="0.1.0",
            beat_age_seconds=2,
            alive=True,
            job_ids=["job-1", "job-2"],
            answers=True,
        ),
        admin_pb2.Node(id="node-b", address="10.0.0.2:8001", beat_age_seconds=90),
    ]

    out = spoken(braid("nodes")[1])
    first, second = json.loads(braid("nodes", "--json")[1])

    assert "node-a * alive 10.0.0.1:8001 cpu:X:threads=2 0.1.0 2 s job-1, job-2" in out
    assert "node-b lost 10.0.0.2:8001" in out
    assert first["job_ids"] == ["job-1", "job-2"]
    assert (first["alive"], first["answers"], second["alive"]) == (True, True, False)
    assert second["beat_age_s"] == 90


def test_jobs_are_listed_watched_and_cancelled(braid: Braid, model_file: Path) -> None:
    assert braid("jobs")[1] == "no jobs\n"
    braid("register", "net", model_file)

    assert "job-1 net 1 queued 0% ?" in spoken(braid("jobs")[1])
    assert json.loads(braid("jobs", "--json")[1])[0]["id"] == "job-1"
    assert braid("jobs", "--model", "other")[1] == "no jobs\n"
    assert braid("jobs", "cancel", "job-1")[:2] == (0, "job job-1 of net is cancelled\n")


def test_the_address_may_stand_after_the_innermost_command(
    braid: Braid, server: FakeServer, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_ADDRESS", "127.0.0.1:1")
    address = ("--address", server.address)

    _, out, _ = braid("register", "net", model_file, *address)
    assert f"braid jobs watch job-1 --address {server.address}" in out
    assert braid("jobs", "cancel", "job-1", *address)[0] == 0
    assert braid("jobs", *address, "cancel", "job-1")[0] == 0
    assert braid("jobs", "cancel", "job-1")[0] == 1


def test_delete(braid: Braid) -> None:
    assert braid("delete", "echo")[:2] == (0, "echo: all versions deleted\n")
    assert braid("delete", "echo")[0] == 1


def test_infer_reads_and_writes_files(braid: Braid, tmp_path: Path) -> None:
    array = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    np.save(tmp_path / "x.npy", array)

    code, out, _ = braid("infer", "echo", f"--input=x={tmp_path}/x.npy", "--output", tmp_path / "y")

    assert code == 0
    assert "x float32 1x3x4x4 0 23.5 47" in spoken(out)
    assert "queue 10 us, compute 20 us, total 30 us; rode in a batch of 4 with 3 rows" in out
    with np.load(tmp_path / "y") as outputs:
        assert np.array_equal(outputs["x"], array)


def test_random_inputs_take_the_models_shape_or_the_one_given_and_a_lone_one_needs_no_name(
    braid: Braid, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 4, 4), np.float32))
    for name in ("", "x="):
        assert " 1x3x4x4 " in braid("infer", "echo", f"--input={name}random")[1]
        assert " 5x3x4x4 " in braid("infer", "echo", f"--input={name}random:5,3,4,4")[1]
        assert " 2x3x4x4 " in braid("infer", "echo", f"--input={name}{tmp_path}/x.npy")[1]
    assert (
        braid("infer", "echo", "--input=x=random")[1:]
        == braid("infer", "echo", "--input=x=random")[1:]
    )


def test_inputs_are_random_unless_they_are_given(braid: Braid, server: FakeServer) -> None:
    server.models["echo"].inputs.add(name="z", dtype="FP32").shape.add().fixed = 2

    assert braid("infer", "echo") == braid("infer", "echo", "--input", "random")
    assert {"x", "z"} <= set(braid("infer", "echo")[1].split())


def test_a_missing_file_is_told_before_the_server_is_asked(
    braid: Braid, server: FakeServer
) -> None:
    told = (1, "", "braid infer: absent.npy: no such file\n")

    assert braid("infer", "echo", "--input", "absent.npy") == told
    assert server.calls == []


def test_an_input_must_be_named_where_there_are_several(braid: Braid, server: FakeServer) -> None:
    server.models["echo"].inputs.add(name="z", dtype="FP32").shape.add().fixed = 2

    assert braid("infer", "echo", "--input", "random:2")[2] == (
        "braid infer: say INPUT=...: the inputs of echo are x, z\n"
    )


@pytest.mark.parametrize("dtype", ["BOOL", "UINT8", "INT64", "FP16", "BF16", "FP64"])
def test_random_inputs_have_the_models_dtype(
    braid: Braid, server: FakeServer, tmp_path: Path, dtype: str
) -> None:
    server.models["echo"].inputs[0].dtype = dtype

    code, out, _ = braid("infer", "echo", "--input=x=random", "--output", tmp_path / "y.npz")

    assert code == 0
    assert {"FP16": "float16", "BF16": "bfloat16", "FP64": "float64"}.get(
        dtype, dtype.lower()
    ) in out
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs["x"].shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["y=random"], r"echo has no input 'y'; its inputs: x: FP32\[batch, 3, 4, 4\]"),
        (["x=random", "x=random"], "--input x is given twice"),
        (["x=absent.npy"], r"^braid infer: absent\.npy: no such file$"),
        (["x=pyproject.toml"], r"pyproject\.toml is not a \.npy file"),
        (["x=random:-1"], r"negative extent in shape \[-1\]"),
    ],
)
def test_bad_inputs_are_one_line(
    braid: Braid, monkeypatch: pytest.MonkeyPatch, inputs: list[str], message: str
) -> None:
    monkeypatch.chdir(ROOT)

    code, out, err = braid("infer", "echo", *(f"--input={given}" for given in inputs))

    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert re.search(message, err)


def test_a_schedule_is_shown_stage_by_stage(braid: Braid) -> None:
    code, out, _ = braid("schedule", "show", "echo", "--batch", "1", "--device", "cpu")

    assert code == 0
    text = spoken(out)
    assert "by ios(r=3,s=8), batch 1" in text
    assert (
        "measured 1.00 ms (2.0%), sequential 1.50 ms (1.0%), speed-up 1.500x (1.480 to 1.530)"
        in text
    )
    assert "4 units in 2 stages, 3 groups, predicted 1.00 ms, 7 stages measured, 2 reused" in text
    assert "1 concurrent 400 us 1 stem (convolution+relu)" in text
    assert "2 concurrent 600 us 1 left (convolution) 2 right (convolution) -> right_pool" in text


def test_a_schedule_as_json_is_the_artefact_itself(braid: Braid) -> None:
    assert json.loads(braid("schedule", "show", "echo", "--format", "json")[1]) == SCHEDULE


def test_a_plan_without_stages_is_shown_by_streams(braid: Braid, server: FakeServer) -> None:
    server.schedule = schedule_document(stages=())

    assert "2 1 left (convolution) 3 0 right (convolution)" in spoken(
        braid("schedule", "show", "echo")[1]
    )


def test_a_plan_that_was_refused_says_why(braid: Braid, server: FakeServer) -> None:
    seen = Provenance(promoted=False, reason="slower than sequential")
    server.schedule = schedule_document(provenance=seen)

    out = braid("schedule", "show", "echo")[1]

    assert "not promoted, the sequential plan serves: slower than sequential" in out


def test_schedules_are_made_again(braid: Braid, server: FakeServer) -> None:
    code, out, _ = braid("schedule", "again", "echo")
    assert code == 0
    assert "echo version 1 is scheduled again as job again-1" in out
    assert "braid jobs watch again-1" in out

    code, out, err = braid(
        *("schedule", "again", "echo", "--batch", 4, "--device", "cpu", "--version", 2, "--wait")
    )
    assert code == 0
    assert out.startswith("echo version 1 is ready\n")
    assert "measuring" in err
    assert [(each.batch_size, each.device, each.version) for each in server.asked_again] == [
        (0, "", ""),
        (4, "cpu", "2"),
    ]
    (job,) = json.loads(braid("schedule", "again", "echo", "--json")[1])
    assert job["id"] == "again-3"
    code, _, err = braid("schedule", "again", "nothing")
    assert (code, "nothing" in err) == (1, True)


def test_a_schedule_that_was_tampered_with_is_refused(braid: Braid, server: FakeServer) -> None:
    server.schedule = {**SCHEDULE, "planner": "other"}

    code, _, err = braid("schedule", "show", "echo")

    assert code == 1
    assert "checksum does not match" in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["register", "net"],
        ["register", "net", "f", "--batch-sizes", "1,x"],
        ["register", "net", "f", "--batch-sizes", "0"],
        ["register", "net", "f", "--input-shape", "1,3"],
        ["infer"],
        ["infer", "echo", "--seed", "-1"],
        ["infer", "echo", "--input", "x"],
        ["infer", "echo", "--input", "x=random:a"],
        ["schedule"],
        ["schedule", "show", "echo", "--format", "png"],
        ["schedule", "show", "echo", "--batch", "0"],
        ["schedule", "again", "echo", "--batch", "0"],
        ["schedule", "again"],
        ["infer", "echo", "--input", "random", "--timeout", "0"],
        ["models", "--address", "localhost"],
        ["models", "--address", "http://localhost:8001"],
        ["serve", "a/b=setup.py"],
        ["serve", "--log-level", "loud"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(
    braid: Braid, server: FakeServer, arguments: list[str]
) -> None:
    code, out, err = braid(*arguments)

    assert (code, out) == (2, "")
    assert err.startswith("usage: braid")
    assert server.calls == []


@pytest.mark.parametrize(
    ("arguments", "usage", "problem"),
    [
        (["serv"], "braid [--version] COMMAND", "unknown: serv; did you mean serve? (known: "),
        (["jobs", "watch", "x", "--adress=h:1"], "braid jobs", "--adress=h:1; did you mean --addr"),
        (["register", "net", "f", "--wiat"], "braid register", "unknown: --wiat; did you mean --w"),
        (["infer", "net", "--inptu", "x=a.npy"], "braid infer", "did you mean --input?"),
        (["register", "net", "f", "--planner", "oparra"], "braid register", "did you mean opara?"),
    ],
)
def test_a_wrong_word_is_answered_with_the_one_meant(
    braid: Braid, arguments: list[str], usage: str, problem: str
) -> None:
    code, _, err = braid(*arguments)

    assert (code, err.startswith(f"usage: {usage}")) == (2, True)
    assert problem in err.splitlines()[-1]


def test_help_is_the_answer_to_no_command(braid: Braid) -> None:
    assert braid()[2] == braid("--help")[1]


def test_versions_begin_at_one(braid: Braid) -> None:
    for wrong in ("latest:0", "latest:-1", "latest:1,2", "0", "1,0", ""):
        code, _, err = braid("serving", "echo", f"--versions={wrong}")
        assert (code, "give all, latest:N or numbers, from 1 on" in err) == (2, True)


def test_errors_are_one_line_and_name_the_request_where_the_server_is_to_blame(
    braid: Braid, server: FakeServer
) -> None:
    assert braid("infer", "nobody", "--input=x=random") == (
        1,
        "",
        "braid infer: no model named 'nobody'\n",
    )
    server.fails("ListModels", grpc.StatusCode.INTERNAL, "internal error")
    assert braid("models") == (1, "", "braid models: internal error (request req-1)\n")


def test_no_server_is_one_line_that_says_what_to_do(braid: Braid) -> None:
    code, _, err = braid("models", "--address", "127.0.0.1:1")

    assert code == 1
    assert err.startswith("braid models: no server answers at 127.0.0.1:1 (")
    assert err.endswith("start one with `braid serve`\n")
    assert err.count("\n") == 1


def test_a_variable_that_nothing_reads_is_named(
    braid: Braid, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = braid("models")
    monkeypatch.setenv("BRAID_ADRESS", "h:1")
    monkeypatch.setenv("BRAID_QUICKLY", "1")
    monkeypatch.setenv("BRAID_GRPC_PORT", "1")  # of `braid serve`
    monkeypatch.setenv("BRAID_SERVICE_PORT", "1")  # of Kubernetes

    code, out, err = braid("models")

    assert (code, out, "") == known
    assert err.splitlines() == [
        "braid: the variable BRAID_ADRESS is not known; did you mean BRAID_ADDRESS?",
        "braid: the variable BRAID_QUICKLY is not known",
    ]


def test_a_bad_setting_stops_serve_with_one_line_and_exit_code_2(
    braid: Braid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_DEVICES", "abacus")

    code, out, err = braid("serve", "--grpc-port", "99999")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--grpc-port" in err
    assert "BRAID_DEVICES" in err


def test_flags_of_serve_are_settings() -> None:
    from braid.server.cli.local.serve import FLAGS

    names = {flag.removeprefix("--").replace("-", "_") for flag in FLAGS}
    assert names <= set(Settings.model_fields)


def test_a_model_that_serves_unscheduled_is_an_exit_code_of_its_own(
    braid: Braid, server: FakeServer, model_file: Path
) -> None:
    server.models["net"] = server.models["echo"]
    server.job_states = [admin_pb2.Job(state=State.UNSCHEDULED, message="no schedule: why")]

    code, out, err = braid("register", "net", model_file, "--wait")

    assert code == 3
    assert out.startswith("net version 1 serves, but is not scheduled: no schedule: why\n")
    assert "serves, not scheduled" in err


def test_ctrl_c_ends_the_waiting_and_not_the_job(server: FakeServer, model_file: Path) -> None:
    server.hold_watch = True
    command = ["-m", "braid.server.cli.main", "register", "net", str(model_file), "--wait"]
    process = subprocess.Popen(
        [sys.executable, *command, "--address", server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while process.stderr.readline() != "importing\n":
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (130, "")
    hint = f"--address {server.address}"
    assert f"job job-1 goes on; watch it: braid jobs watch job-1 {hint}" in err
    assert f"cancel it: braid jobs cancel job-1 {hint}" in err
    assert "CancelJob" not in server.calls


def test_a_schedule_is_drawn_as_a_picture_or_a_trace(braid: Braid, tmp_path: Path) -> None:
    picture, trace = tmp_path / "s.svg", tmp_path / "s.json"

    code, out, _ = braid("schedule", "show", "echo", "--format", "svg", "--output", picture)
    assert (code, out) == (0, f"written: {picture}\n")
    assert "echo, batch 1, cpu" in picture.read_text()
    assert braid("schedule", "show", "echo", "--format", "perfetto", "--output", trace)[0] == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"stage 2 (concurrent)", "right_pool (max_pool2d)"} <= names


def test_one_block_is_drawn_alone_and_blocks_are_counted(braid: Braid) -> None:
    code, out, _ = braid("schedule", "show", "echo", "--format", "svg", "--block", "-1")
    assert code == 0
    assert "echo, batch 1, cpu, last block" in out

    code, _, err = braid("schedule", "show", "echo", "--format", "svg", "--block", "9")
    assert code == 1
    assert "there is no block 9: this model has 1 blocks" in err


def test_two_schedules_are_compared(braid: Braid) -> None:
    code, out, _ = braid("schedule", "diff", "echo", "--against-batch", "1")
    assert code == 0
    assert "both run the same units in the same stages on the same streams" in out

    found = json.loads(braid("schedule", "diff", "echo", "--format", "json")[1])
    assert found["same"]
    assert [stage["change"] for stage in found["stages"]] == ["kept", "kept"]
    assert "against" in braid("schedule", "diff", "echo", "--format", "svg")[1]
