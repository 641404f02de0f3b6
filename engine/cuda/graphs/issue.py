"""Issuing a command list: the same steps warm the kernels up, are captured, or run eagerly.

    warm_up ──> every kernel once, one after the other, on its own stream; who shares memory
    issue   ──> launches, records, waits and releases in the order of the list

The warm-up happens in the thread that captures, with the tensors' real sizes and alignments:
kernels are loaded, cuDNN's plans are made and cuBLAS has its workspace on each stream, none of
which a capture allows.
"""

from collections.abc import Callable, Sequence

from braid.engine.cuda.driver.interface import Driver, Event, Stream
from braid.engine.cuda.graphs.calls import StreamCall, serial
from braid.engine.cuda.graphs.commands import (
    CommandList,
    LaunchStep,
    RecordStep,
    ReleaseStep,
    WaitStep,
    lower,
    order_calls,
)
from braid.engine.cuda.graphs.release import SlotAliases
from braid.engine.program.program import BoundUnit, Environment
from braid.engine.runtime.yielding import YieldToRequests, no_pause


def issue(
    commands: CommandList,
    env: Environment,
    driver: Driver,
    streams: Sequence[Stream],
    launched: Callable[[BoundUnit], None] = lambda _: None,
) -> None:
    """Issue a command list on the slots of ``env``; calls ``launched`` after each launch."""
    events: dict[int, Event] = {}
    for step in commands:
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
    calls: Sequence[StreamCall],
    env: Environment,
    driver: Driver,
    streams: Sequence[Stream],
    keep: frozenset[int],
    pause: YieldToRequests = no_pause,
) -> SlotAliases:
    """Put every call on its stream once, in turns, and learn which slots share memory.

    ``env`` holds the slots in ``keep`` when done. ``pause`` follows each call: cuDNN may try
    many algorithms, Inductor compile.
    """
    aliases = SlotAliases()
    in_turns = serial(calls)
    last = {
        slot: i
        for i, call in enumerate(calls)
        for slot in (*call.bound.inputs, *call.bound.outputs)
    }
    released = {slot for call in calls for slot in call.bound.outputs} - keep
    releases: dict[int, list[int]] = {}
    for slot, at in last.items():
        if slot in released:
            releases.setdefault(at + 1, []).append(slot)
    commands = lower(in_turns, order_calls(in_turns), releases)

    def learn(unit: BoundUnit) -> None:
        inputs = [(slot, env[slot]) for slot in unit.inputs]
        outputs = [(slot, tensor) for slot in unit.outputs if (tensor := env[slot]) is not None]
        aliases.learn(inputs, outputs)
        del inputs, outputs
        pause()

    issue(commands, env, driver, streams, learn)
    return aliases


def launch_unit(unit: BoundUnit, env: Environment, driver: Driver, stream: Stream) -> None:
    results = driver.launch(stream, unit.kernel.function, [env[slot] for slot in unit.inputs])
    for slot, tensor in zip(unit.outputs, results, strict=True):
        env[slot] = tensor
