import io
import json
import logging
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from braid.core.tensor import TensorType
from braid.server.observability.logs import JsonFormatter, TextFormatter
from braid.server.ports.ready_line import ModelToTry, ready_facts
from braid.server.security.tokens import hashed
from braid.server.settings import Settings

NET = ModelToTry(
    "net",
    {
        "it's": TensorType("FP32", ("batch", 3)),
        'a "b"': TensorType("INT64", (2, "tokens")),
        "flag": TensorType("BOOL", ()),
    },
)


def test_the_inputs_are_described_and_are_zeros_with_open_extents_as_one() -> None:
    line = ready_facts(Settings(), 1, 2, NET)["curl"]

    printf, curl = line.split("; head -c ")
    head = shlex.split(printf)[-1]
    assert f"Inference-Header-Content-Length: {len(head)}'" in curl
    assert curl.startswith("29 /dev/zero; } | curl ")
    assert curl.endswith(" http://127.0.0.1:2/v2/models/net/infer")
    given = [
        (each["name"], each["datatype"], each["shape"], each["parameters"]["binary_data_size"])
        for each in json.loads(head)["inputs"]
    ]
    assert given == [
        ("it's", "FP32", [1, 3], 12),
        ('a "b"', "INT64", [2, 1], 16),
        ("flag", "BOOL", [], 1),
    ]


def test_callers_of_a_closed_server_are_told_what_to_show(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-of-this-test\nand-another-one-of-it\n")
    settings = Settings(
        host="::",
        tls_certificate=tmp_path / "my cert.pem",
        tls_key=tmp_path / "key.pem",
        infer_token_file=tmp_path / "tokens",
    )

    facts = ready_facts(settings, 1, 2, NET)

    words = shlex.split(facts["curl"].split(" | ")[1])
    assert facts["rest"] == "https://127.0.0.1:2/v2"
    assert words[words.index("--cacert") + 1] == str(tmp_path / "my cert.pem")
    assert f"Authorization: Bearer $(head -n 1 {tmp_path}/tokens)" in words
    assert "--token-file" in facts["try"]


def test_each_call_is_proposed_with_a_token_that_it_can_show(tmp_path: Path) -> None:
    admin, infer, kept = (tmp_path / name for name in ("admin", "infer", "hashed"))
    admin.write_text("an-admin-token-of-this-test\n")
    infer.write_text("a-token-that-runs-models\n")
    kept.write_text(f"{hashed('a-token-that-is-not-here')}\n")

    def tokens(**given: Any) -> tuple[str, str]:
        """Token files that the calls to register and to infer name."""
        settings = Settings(**given)
        lines = (ready_facts(settings, 8001, 2, model)["try"] for model in (None, NET))
        register, run = (line.partition(" --token-file ")[2] for line in lines)
        return register, run

    assert tokens() == ("", "")
    assert tokens(admin_token_file=admin) == (str(admin), str(admin))
    assert tokens(admin_token_file=admin, infer_token_file=infer) == (str(admin), str(infer))
    assert tokens(admin_token_file=admin, infer_token_file=kept) == (str(admin), str(admin))
    assert tokens(admin_token_file=kept) == ("TOKEN_FILE", "TOKEN_FILE")
    assert tokens(admin_token_file=admin, allow_unauthenticated=True) == (str(admin), "")
    assert tokens(infer_token="a-token-of-this-test") == ("TOKEN_FILE", "TOKEN_FILE")
    elsewhere = Settings(admin_address="unix:/run/a.sock", admin_token_file=admin)
    command = (
        f"braid register NAME FILE.onnx --wait --address unix:/run/a.sock --token-file {admin}"
    )
    assert ready_facts(elsewhere, 8001, 2, None)["try"] == command
    assert "curl" not in ready_facts(Settings(admin_token_file=kept), 1, 2, NET)


def test_no_line_is_proposed_that_cannot_work(tmp_path: Path) -> None:
    pem = tmp_path / "a.pem"
    mutual = Settings(tls_certificate=pem, tls_key=pem, tls_client_ca=pem)
    many = ModelToTry("net", {f"input-{n}": TensorType("FP32", (1,)) for n in range(99)})

    assert "curl" not in ready_facts(Settings(), 1, 2, None)
    assert "curl" not in ready_facts(mutual, 1, 2, NET)
    assert "curl" not in ready_facts(Settings(), 1, 2, many)
    assert ready_facts(Settings(), 1, 2, None)["try"].startswith("braid register ")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_the_log_shows_them_whole_and_as_they_are(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    facts = ready_facts(Settings(), 1, 2, NET)

    record = logging.makeLogRecord({"msg": "ready", "levelname": "INFO", "name": "a", **facts})
    handler.handle(record)

    if isinstance(formatter, JsonFormatter):
        assert json.loads(stream.getvalue())["curl"] == facts["curl"]
    else:
        line, *below = stream.getvalue().splitlines()
        assert below == [f"  | {facts['try']}", f"  | {facts['curl']}"]
        assert re.search(r" grpc=127.0.0.1:1 http=127.0.0.1:2 rest=\S+ console=\S+$", line)
