"""Which failures are tried again, and when: no server, no sleeping."""

import pytest

from braid_client import (
    BraidError,
    DeadlineExceeded,
    InvalidArgument,
    QueueFull,
    ResourceExhausted,
    RetryPolicy,
    ServerError,
    Unavailable,
)
from braid_client.retries import Attempts, Retry
from braid_client.rpcs import RPCS
from braid_client.wire import admin_pb2, inference_pb2
from tests.clock import SetClock

UNAVAILABLE = Unavailable("restarting")
FULL = QueueFull("full", retry_after_s=1.0)


def attempts(
    retry: Retry, *, timeout_s: float = 60.0, chance: float = 0.5, clock: SetClock | None = None
) -> Attempts:
    policy = RetryPolicy(max_attempts=4, initial_s=0.1, multiplier=2, max_s=0.3, jitter=0.25)
    return Attempts(policy, retry, timeout_s, clock or SetClock(100.0), lambda: chance)


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (UNAVAILABLE, {Retry.READ, Retry.INFER}),
        (FULL, {Retry.INFER}),
        (ResourceExhausted("the message is too large"), set()),
        (DeadlineExceeded("late"), set()),
        (ServerError("bug"), set()),
        (InvalidArgument("wrong"), set()),
    ],
)
def test_only_harmless_repeats_are_made(error: BraidError, retried: set[Retry]) -> None:
    assert {kind for kind in Retry if attempts(kind).delay_after(error) is not None} == retried


def test_calls_that_change_something_are_never_repeated() -> None:
    names = {rpc.path.rpartition("/")[2]: rpc.retry for rpc in RPCS}

    assert [name for name, retry in names.items() if retry is Retry.NEVER] == [
        "InferStream",
        "RegisterModel",
        "CancelJob",
        "DeleteModel",
        "SetServing",
        "ScheduleAgain",
        "PinPlan",
    ]
    assert [name for name, retry in names.items() if retry is Retry.INFER] == ["Infer"]


def test_waits_double_up_to_a_bound_and_end() -> None:
    tries = attempts(Retry.READ)

    delays = [tries.delay_after(UNAVAILABLE) for _ in range(4)]

    assert delays == pytest.approx([0.1, 0.2, 0.3, None])


def test_jitter_spreads_the_waits() -> None:
    assert attempts(Retry.READ, chance=0.0).delay_after(UNAVAILABLE) == pytest.approx(0.075)
    assert attempts(Retry.READ, chance=1.0).delay_after(UNAVAILABLE) == pytest.approx(0.125)


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999])
def test_the_servers_hint_is_a_lower_bound(chance: float) -> None:
    delay = attempts(Retry.INFER, chance=chance).delay_after(FULL)

    assert delay is not None
    assert 1.0 <= delay <= 1.25


def test_no_wait_goes_past_the_deadline() -> None:
    assert attempts(Retry.INFER, timeout_s=0.9).delay_after(FULL) is None
    assert attempts(Retry.INFER, timeout_s=2.0).delay_after(FULL) is not None


def test_what_remains_shrinks_and_is_never_negative() -> None:
    clock = SetClock(100.0)
    tries = attempts(Retry.READ, timeout_s=5.0, clock=clock)

    clock.now += 2
    assert tries.remaining_s() == pytest.approx(3.0)
    clock.now += 9
    assert tries.remaining_s() == 0.0
    assert tries.delay_after(UNAVAILABLE) is None


def test_a_stream_that_brought_something_counts_failures_anew() -> None:
    tries = attempts(Retry.READ)
    for _ in range(3):
        tries.delay_after(UNAVAILABLE)

    tries.succeeded()

    assert tries.delay_after(UNAVAILABLE) == pytest.approx(0.1)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_deadline_must_be_positive(timeout_s: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout_s must be positive"):
        attempts(Retry.READ, timeout_s=timeout_s)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)
    with pytest.raises(ValueError, match="jitter"):
        RetryPolicy(jitter=1.0)


def test_every_call_that_the_wire_declares_is_in_the_table() -> None:
    declared = {
        f"/{service.full_name}/{name}"
        for module in (inference_pb2, admin_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for name in service.methods_by_name
    }

    assert {rpc.path for rpc in RPCS} == declared
