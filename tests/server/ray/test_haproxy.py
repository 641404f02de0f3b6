import subprocess
from pathlib import Path

import pytest

from braid.server.ray.haproxy import change, configuration_file, for_calls, program, with_replicas

WRITTEN = """global
    maxconn 100
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    errorfile 502 /tmp/500.http
    errorfile 503 /tmp/500.http
    # errorfile is only named here
    balance leastconn
frontend grpc
    bind 127.0.0.1:18001 proto h2
    default_backend grpc-braid
backend grpc-braid
    server SERVE_REPLICA-braid 127.0.0.1:40000 proto h2 check
backend http-braid
    server SERVE_REPLICA-braid 127.0.0.1:30000 check
"""


def test_error_pages_are_left_out_and_connections_are_checked() -> None:
    made = for_calls(WRITTEN).splitlines()

    assert not [line for line in made if line.startswith("    errorfile")]
    assert "    # errorfile is only named here" in made
    assert made.index("    timeout check 5s") == made.index("defaults") + 1
    assert "    option srvtcpka" in made
    assert "    server SERVE_REPLICA-braid 127.0.0.1:40000 proto h2 check tcp-ut 10s" in made
    assert "    server SERVE_REPLICA-braid 127.0.0.1:30000 check" in made


def test_what_was_changed_stays_as_it_is() -> None:
    changed = for_calls(WRITTEN)

    assert for_calls(changed) == changed


REPLICA = "    server SERVE_REPLICA-braid 127.0.0.1:40000 proto h2 check\n"
HTTP_REPLICA = "    server SERVE_REPLICA-braid 127.0.0.1:30000 check\n"
FALLBACK = "    server SERVE_PROXY 127.0.0.1:9500 proto h2 check backup\n"
EMPTY = WRITTEN.replace(REPLICA, FALLBACK).replace(HTTP_REPLICA, "")
"""As Ray Serve writes it while it builds an application anew."""


def test_a_backend_that_loses_all_replicas_at_once_keeps_them() -> None:
    made = with_replicas(EMPTY, WRITTEN)

    assert made == EMPTY.replace(FALLBACK, FALLBACK + REPLICA) + HTTP_REPLICA


def test_a_backend_with_a_replica_keeps_no_other() -> None:
    next_one = REPLICA.replace("40000", "40001")
    written = WRITTEN.replace(REPLICA, next_one + FALLBACK)

    assert with_replicas(written, WRITTEN) == written


def test_a_backend_that_is_gone_stays_gone() -> None:
    gone = WRITTEN.replace("backend http-braid\n" + HTTP_REPLICA, "")

    assert with_replicas(gone, WRITTEN) == gone


def test_replicas_are_kept_over_starts_until_there_are_others(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    for written in (WRITTEN, EMPTY, EMPTY):
        file.write_text(written)
        change(file)
        assert "127.0.0.1:40000 proto h2 check tcp-ut 10s" in file.read_text()

    file.write_text(WRITTEN.replace("40000", "40001"))
    change(file)
    assert "40000" not in file.read_text()


@pytest.mark.parametrize("written", [WRITTEN, EMPTY])
def test_haproxy_takes_what_is_made(tmp_path: Path, written: str) -> None:
    try:
        haproxy = program()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    file = tmp_path / "haproxy.cfg"
    file.write_text(with_replicas(for_calls(written), for_calls(WRITTEN)))

    checked = subprocess.run([haproxy, "-c", "-f", file], capture_output=True, text=True)

    assert checked.returncode == 0, checked.stderr


def test_the_configuration_is_found_among_the_arguments() -> None:
    arguments = ["-db", "-f", "/tmp/haproxy.cfg", "-dR", "-sf", "12"]

    assert configuration_file(arguments) == Path("/tmp/haproxy.cfg")
    assert configuration_file(["-v"]) is None
