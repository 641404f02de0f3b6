import re
import shlex
import subprocess
from fnmatch import fnmatch

import pytest

from braid.server.cli.main import build_parser
from tests import ROOT
from tests.deploy.places import unknown_settings


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line)
    ]


def arguments(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


def test_bases_are_pinned_and_both_variants_exist() -> None:
    bases = [rest.split() for rest in arguments("FROM")]
    given = dict(rest.split("=", 1) for rest in arguments("ARG") if rest.count("=") == 1)
    outside = {words[-1]: given[words[0].strip("${}")] for words in bases if "_" in words[0]}
    assert set(outside) == {"base-cpu", "base-cuda"}
    assert all(re.search(r":\d+\.\d+", image) for image in outside.values()), outside
    assert "cuda" in outside["base-cuda"]
    names = {words[-1] for words in bases}
    assert all(words[0] in names or words[-1] in outside or "$" in words[0] for words in bases)


def test_it_runs_as_nobody_in_particular_and_checks_its_health_over_grpc() -> None:
    words = [name for name, _ in instructions()]
    assert arguments("USER") == ["10001:10001"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    (check,) = arguments("HEALTHCHECK")
    command = re.search(r"CMD \[(.*)\]", check)
    assert command is not None
    program, *flags = [part.strip().strip('"') for part in command[1].split(",")]
    assert program == "braid"
    assert build_parser().parse_args(flags).command == "health"


def test_what_it_copies_exists_and_every_package_of_ours_is_copied() -> None:
    copied = set()
    for rest in arguments("COPY"):
        if "--from" not in rest:
            *sources, _ = shlex.split(rest)
            copied |= set(sources)
    assert all((ROOT / source).exists() for source in copied)
    listed = (ROOT / ".dockerignore").read_text()
    folders = re.search(r"^FOLDERS = \((.*)\)", (ROOT / "setup.py").read_text(), re.MULTILINE)
    assert folders is not None
    for folder in [*re.findall(r'"(\w+)"', folders[1]), "client"]:
        assert folder in copied, f"{folder} is not copied"
        assert f"!{folder}/**" in listed, f"{folder} is ignored by .dockerignore"


@pytest.mark.parametrize(
    ("variant", "has_compiler"), [("cuda", True), ("cpu", False)], ids=["cuda", "cpu"]
)
def test_triton_finds_a_compiler_and_python_s_headers_where_it_runs(
    variant: str, has_compiler: bool
) -> None:
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")
    (base,) = [stage for stage in stages if stage.startswith("base-${VARIANT} AS base\n")]
    (runtime,) = [stage for stage in stages if stage.startswith("base AS runtime\n")]
    (script,) = re.findall(r"^RUN (.*?[^\\])$", base, re.DOTALL | re.MULTILINE)
    stand_ins = 'apt-get() { echo "$@"; }; localedef() { :; }; rm() { :; }\n'

    ran = subprocess.run(
        ["bash", "-euc", stand_ins + script.replace("DEBIAN_FRONTEND=noninteractive", "")],
        env={"VARIANT": variant},
        capture_output=True,
        text=True,
        check=True,
    )

    installed = ran.stdout.split()
    assert "ARG VARIANT" in base
    assert "python3" in installed
    assert all((name in installed) == has_compiler for name in ("gcc", "libc6-dev", "python3-dev"))
    assert "TRITON_CACHE_DIR=/tmp/" in runtime, "there is no home"


def test_the_server_reads_every_variable_that_is_set() -> None:
    names = [name for rest in arguments("ENV") for name in re.findall(r"(\w+)=", rest)]
    assert "BRAID_STORE" in names
    assert not unknown_settings(names)


@pytest.mark.parametrize(
    "path", ["deploy/secrets/admin_token", ".git/config", "tests/models/real.py"]
)
def test_what_an_image_must_not_hold_is_ignored(path: str) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert not any(fnmatch(path, pattern) for pattern in allowed)
