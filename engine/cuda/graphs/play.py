"""Playing a tape: the same steps warm the kernels up, are captured, or run eagerly.

    warm_up ──> every kernel once, one after the other, on its own stream; who shares memory
    play    ──> launches, records, waits and releases as the tape has them

The warm-up happens in the thread that captures, with the tensors' real sizes and alignments:
kernels are loaded, cuDNN's plans are made and cuBLAS has its workspace on each stream, none of
which a capture allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from braid.engine.cuda.driver.interface import Driver, Event, Stream
from braid.engine.cuda.graphs.calls import Call, serial
from braid.engine.cuda.graphs.release import Aliases
from braid.engine.cuda.graphs.tape import (
    LaunchStep,
    RecordStep,
    ReleaseStep,
    Tape,
    WaitStep,
    lower,
    order_calls,
)
from braid.engine.program.program import BoundUnit, Environment
from braid.engine.runtime.yielding import Pause, no_pause


def play(
    tape: Tape,
    env: Environment,
    driver: Driver,
    streams: Sequence[Stream],
    launched: Callable[[BoundUnit], None] = lambda _: None,
) -> None:
    """Do the steps of a tape on the slots of ``env``; tells of each launch once it is made."""
    events: dict[int, Event] = {}
    for step in tape.steps:
        match step:
            case LaunchStep(_, unit, stream):
                launch_unit(unit, env, driver, streams[stream])
                launched(unit)
            case WaitStep(event, stream):
                driver.wait(events[event], streams[stream])
            case RecordStep(event, stream):
                events[event] = driver.event()
                driver.record(events[event], streams[stream])
            case ReleaseStep(slots):
                for slot in slots:
                    env[slot] = None


def warm_up(
    calls: Sequence[Call],
    env: Environment,
    driver: Driver,
    streams: Sequence[Stream],
    keep: frozenset[int],
    pause: Pause = no_pause,
) -> Aliases:
    """Put every call on its stream once, in turns, and learn which slots share memory.

    Args:
        calls: in launch order, each slot filled at most once.
        env: what the calls read from outside; holds the slots in ``keep`` when done.
        driver: of the device.
        streams: of the calls, by index.
        keep: slots that are not dropped after their last reader.
        pause: called after each: cuDNN may try many algorithms, Inductor compile.
    """
    aliases = Aliases()
    in_turns = serial(calls)
    last = {slot: i for i, call in enumerate(calls) for slot in _touched(call.bound)}
    made = {slot for call in calls for slot in call.bound.outputs} - keep
    releases: dict[int, list[int]] = {}
    for slot, at in last.items():
        if slot in made:
            releases.setdefault(at + 1, []).append(slot)
    tape = lower(in_turns, order_calls(in_turns), releases)

    def learn(unit: BoundUnit) -> None:
        inputs = [(slot, env[slot]) for slot in unit.inputs]
        outputs = [(slot, tensor) for slot in unit.outputs if (tensor := env[slot]) is not None]
        aliases.learn(inputs, outputs)
        del inputs, outputs
        pause()

    play(tape, env, driver, streams, learn)
    return aliases


def launch_unit(unit: BoundUnit, env: Environment, driver: Driver, stream: Stream) -> None:
    """Put a unit on a stream, from the slots it reads to those it fills."""
    results = driver.launch(stream, unit.kernel.run_on(1), [env[slot] for slot in unit.inputs])
    for slot, tensor in zip(unit.outputs, results, strict=True):
        env[slot] = tensor


def _touched(unit: BoundUnit) -> Iterable[int]:
    return (*unit.inputs, *unit.outputs)
