"""Connections that mean harm cost the server what its settings say, and nobody else's call."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaigns.noise import methods_of
from tests.attack.messages.connections import HEALTH, INFER, Wire, bomb, half_message, head
from tests.attack.target import CALLS_MEMORY_BYTES, Target

pytestmark = pytest.mark.ci

MIB = 1 << 20
REFUSED = {3, 7, 8, 12, 16}
"""INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED."""
SPARE_BYTES = 300 * MIB
"""What allocators and Python's own objects may take beside what is counted."""


@contextlib.contextmanager
def bounded(target: Target, most_bytes: int) -> Iterator[None]:
    """Whatever happens within, the front end never holds so much more."""
    status = Path(f"/proc/{target.server.process.pid}/status")
    status.with_name("clear_refs").write_text("5")  # the peak is from now on
    before = _peak(status)
    yield
    grown = _peak(status) - before
    assert grown < most_bytes + SPARE_BYTES, f"{grown >> 20} MiB more"


def _peak(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_no_method_takes_a_compression_bomb_token_or_not(target: Target, encoding: str) -> None:
    message = bomb(encoding, 512 * MIB)
    token = ("authorization", target.metadata[0][1])
    with bounded(target, 3 * 64 * MIB):  # a message as it comes, and as it is put together
        for method in methods_of(target.address, target.metadata):
            for shown in ((), (token,)):
                wire = Wire(target.address)
                wire.headers(1, head(method.path, ("grpc-encoding", encoding), *shown))
                wire.send_all(1, message)
                assert wire.status(1) in REFUSED, method.path
                wire.close()
    target.check()


def test_many_bombs_at_once_are_bounded(target: Target) -> None:
    message = bomb("gzip", 60 * MIB)  # that the limit on messages lets in
    wires = [Wire(target.address) for _ in range(4)]
    with bounded(target, CALLS_MEMORY_BYTES + len(wires) * 64 * MIB):
        for wire in wires:
            for number in range(1, 11, 2):
                wire.headers(number, head(HEALTH, ("grpc-encoding", "gzip")))
                wire.send_all(number, message)
        for wire in wires:
            assert {wire.status(number) for number in range(1, 11, 2)} <= REFUSED
            wire.close()
    target.check()


@pytest.mark.parametrize(("count", "streams"), [(40, 1), (1, 40), (12, 12)])
def test_half_messages_hold_the_limit_at_most_and_others_get_through(
    target: Target, count: int, streams: int
) -> None:
    stopped = threading.Event()

    def hold() -> None:
        wire = Wire(target.address)
        begun = [half_message(wire, 2 * n + 1, 60 * MIB) for n in range(streams)]
        while not stopped.is_set() and not wire.is_closed:
            did = [send_on() for send_on in begun]
            wire.read(0.0 if any(did) else 0.1)
        wire.close()

    with bounded(target, CALLS_MEMORY_BYTES):
        holding = [threading.Thread(target=hold) for _ in range(count)]
        for thread in holding:
            thread.start()
        try:
            time.sleep(2)
            target.answer()
            wire = Wire(target.address)
            wire.headers(1, head(INFER, ("authorization", target.metadata[0][1])))
            wire.send_all(1, b"\0" + (40 * MIB).to_bytes(4, "big") + bytes(40 * MIB))
            assert wire.status(1) == 3  # it came through, and is no message of its type
            wire.close()
        finally:
            stopped.set()
            for thread in holding:
                thread.join()
    target.check()
