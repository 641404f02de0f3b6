"""Device worker that sleeps for the latency of a batch and answers with its input.

Started by a server in the place of ``braid.engine.worker.process.main``, with the same arguments.
Latencies are microseconds by batch size, in ``latencies.json`` in the folder of the store. Loads no
torch. What is measured or described for a registration is refused: models serve without a schedule.
"""

from __future__ import annotations

import json
import mmap
import select
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.fleet.sleeping import LATENCIES
from braid.core.child_process import end_with_parent
from braid.core.errors import BraidError, PreconditionFailed
from braid.core.tensor import TensorType
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    Acknowledged,
    AnyReply,
    AnyRequest,
    DescribeDevice,
    DeviceDescription,
    ExecutableReady,
    LoadModel,
    PrepareExecutable,
    ReleaseExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
)
from braid.engine.link.shared_memory import SlotLayout, slot_layout
from braid.engine.worker.process.current_work import CurrentWork
from braid.engine.worker.process.main import arguments_of_worker
from braid.engine.worker.process.status_thread import answer_status

OUTPUT = "y"


class SleepingWorker:
    """One link's answers, in the order of its calls."""

    def __init__(self, arena: mmap.mmap) -> None:
        self._arena = arena
        self._latencies_us: Mapping[int, float] = {}
        self._ready: dict[int, tuple[int, SlotLayout]] = {}  # rows and layout by number
        self._free_at = 0.0  # end of the last run

    def answer(self, request: AnyRequest, was_waiting: bool) -> AnyReply:
        """Return the reply to one request; a run takes its time.

        A run that waited begins when the last one ended. So the device is not slower when this
        process wakes up late, because other processes have the cores.
        """
        match request:
            case DescribeDevice():
                return DeviceDescription("sleeping", 1, ("fp32",), (), {})
            case LoadModel(path=path):
                store = Path(path).parents[1]
                read = json.loads((store / LATENCIES).read_text())
                self._latencies_us = {int(rows): us for rows, us in read.items()}
            case PrepareExecutable(number, to_run):
                return self._prepare(number, to_run.program.specs)
            case RunExecutable(number, offset):
                return self._run(number, offset, was_waiting)
            case ReleaseExecutable(number):
                self._ready.pop(number, None)
            case UnloadModel():
                pass
            case _:
                raise PreconditionFailed("this device sleeps: nothing is measured on it")
        return Acknowledged()

    def _prepare(self, number: int, specs: Mapping[str, TensorType]) -> ExecutableReady:
        [given] = specs.values()
        outputs = {OUTPUT: given}
        rows = given.shape[0]
        assert isinstance(rows, int)
        self._ready[number] = rows, slot_layout(dict(specs), outputs)
        return ExecutableReady(outputs, self._latencies_us[rows] / 1e6)

    def _run(self, number: int, offset: int, was_waiting: bool) -> RunDone:
        rows, layout = self._ready[number]
        [given], [answer] = layout.inputs.values(), layout.outputs.values()
        at, to = offset + given.offset, offset + answer.offset
        self._arena[to : to + answer.size_bytes] = self._arena[at : at + given.size_bytes]
        began = self._free_at if was_waiting else time.perf_counter()
        self._free_at = began + self._latencies_us[rows] / 1e6
        time.sleep(max(0.0, self._free_at - time.perf_counter()))
        return RunDone(round(self._latencies_us[rows]))


def serve(channel: BlockingChannel, worker: SleepingWorker) -> None:
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while True:
        was_waiting = bool(poller.poll(0))
        messages = channel.receive()
        if messages is None:
            return
        for message in messages:
            assert isinstance(message, WorkerCall)
            try:
                reply = worker.answer(message.request, was_waiting)
            except BraidError as error:
                channel.send(WorkerFailure.of(message.number, error))
            else:
                channel.send(WorkerAnswer(message.number, reply))
            was_waiting = True


def main() -> None:
    arguments = arguments_of_worker()
    end_with_parent(arguments.parent)
    answer_status(socket.socket(fileno=arguments.control_fd), CurrentWork())
    arena = mmap.mmap(arguments.arena_fd, 0)
    channel = BlockingChannel(socket.socket(fileno=arguments.link_fd))
    serve(channel, SleepingWorker(arena))


if __name__ == "__main__":
    main()
