"""Calls lowered to a command list: each launch, event, wait and release, in the host's order.

    call 0 on s0, call 1 on s1 after 0, call 2 on s0 after 1

    record root s0 │ launch 0 s0 │ record 0 s0 │ wait 0 s1 │ launch 1 s1 │ record 1 s1 │
    wait 1 s0 │ launch 2 s0

A command list guarantees: every stream's first step is a wait for something the origin led to
(fork), so that a capture on the origin takes in all streams; at its end the origin has waited for
every launch (join); a wait that earlier waits imply is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.engine.cuda.driver.interface import ORIGIN
from braid.engine.cuda.graphs.calls import StreamCall
from braid.engine.program.program import BoundUnit


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Put a unit's kernels on a stream."""

    call: int
    unit: BoundUnit
    stream: int


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Let an event stand for the work of a stream so far."""

    event: int  # of a call: its index; the root: the number of calls
    stream: int


@dataclass(frozen=True, slots=True)
class WaitStep:
    """Let further work on a stream begin after an event."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """Drop the tensors in these slots: their memory may be given to the next launches."""

    slots: tuple[int, ...]


Step = LaunchStep | RecordStep | WaitStep | ReleaseStep


CommandList = tuple[Step, ...]  # steps in the order in which the host issues them


@dataclass(frozen=True, slots=True)
class Order:
    """Waits between calls on streams."""

    waits: tuple[tuple[int, ...], ...]  # of each call: calls on other streams, no redundant ones
    before: tuple[int, ...]  # of each call: bit set of the calls over when it starts
    joins: tuple[int, ...]  # calls that the origin waits for at the end


def order_calls(calls: Sequence[StreamCall]) -> Order:
    """Find the waits that give each call what it must come after, and the final joins."""
    finished: list[int] = []  # of each call: bit set of the calls over when it is
    tail: dict[int, int] = {}  # stream -> finished set of its last call
    waits, before = [], []
    for i, call in enumerate(calls):
        chosen, done = _cover(call.after, tail.get(call.stream, 0), finished)
        waits.append(chosen)
        before.append(done)
        finished.append(done | 1 << i)
        tail[call.stream] = finished[i]
    joins, _ = _cover((1 << len(calls)) - 1, tail.get(ORIGIN, 0), finished)
    return Order(tuple(waits), tuple(before), joins)


def _cover(needed: int, done: int, finished: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Calls to wait for until all ``needed`` are over: the latest first, since it implies most."""
    chosen = []
    while missing := needed & ~done:
        latest = missing.bit_length() - 1
        chosen.append(latest)
        done |= finished[latest]
    return tuple(chosen), done


def lower(
    calls: Sequence[StreamCall], order: Order, releases: Mapping[int, Sequence[int]]
) -> CommandList:
    """Lower calls in launch order; ``releases``: call -> slots to drop just before its launch."""
    root = len(calls)
    waited = {other for waits in (*order.waits, order.joins) for other in waits}
    streams = {call.stream for call in calls} | {ORIGIN}
    steps: list[Step] = [RecordStep(root, ORIGIN)] if len(streams) > 1 else []
    forked = {ORIGIN}
    for i, call in enumerate(calls):
        events = order.waits[i] or (() if call.stream in forked else (root,))
        forked.add(call.stream)
        steps += [WaitStep(event, call.stream) for event in events]
        if releases.get(i):
            steps.append(ReleaseStep(tuple(releases[i])))
        steps.append(LaunchStep(i, call.bound, call.stream))
        if i in waited:
            steps.append(RecordStep(i, call.stream))
    steps += [WaitStep(event, ORIGIN) for event in order.joins]
    return tuple(steps)
