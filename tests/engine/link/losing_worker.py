"""A worker that compares for ``tolerance`` seconds, whose device is lost at the first request, and
that closes its link without ending if it is told to. It answers with what it has seen."""

import argparse
import os
import signal
import socket
import time

from braid.core.errors import DeviceOutOfMemory
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    AnyRequest,
    ComparePlans,
    DescribeProgram,
    DeviceDescription,
    DeviceIsLost,
    ExecutableReady,
    PrepareExecutable,
    RunDone,
    RunExecutable,
    UnloadModel,
    WorkerAnswer,
    WorkerCall,
    WorkerFailure,
)
from braid.engine.link.options import LOST_EXIT_CODE

FINE = 2
"""The executable that can be run."""

LEAVE = UnloadModel("leave")
"""The request to close the link without ending."""

NO_ROOM_FOR = "OMP_TEST_HAS_NO_ROOM_FOR"
"""Names the model that finds no room; a variable that workers are told."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link-fd", type=int, required=True)
    options, _ = parser.parse_known_args()
    link = socket.socket(fileno=options.link_fd)
    channel = BlockingChannel(link)
    seen: list[str] = []
    while messages := channel.receive():
        for message in messages:
            assert isinstance(message, WorkerCall)
            request = message.request
            seen.append(type(request).__name__)
            if is_fatal(request):
                channel.send(DeviceIsLost("the GPU failed while running: an illegal memory access"))
                os._exit(LOST_EXIT_CODE)
            if request == LEAVE:
                link.close()
                signal.pause()
            channel.send(answer_to(message.number, request, seen))


def is_fatal(request: AnyRequest) -> bool:
    is_run = isinstance(request, RunExecutable) and request.number != FINE
    return is_run or isinstance(request, DescribeProgram)


def answer_to(call: int, request: AnyRequest, seen: list[str]) -> WorkerAnswer | WorkerFailure:
    if isinstance(request, RunExecutable):
        return WorkerAnswer(call, RunDone(7))
    if isinstance(request, PrepareExecutable):
        if request.to_run.program.digest == os.environ.get(NO_ROOM_FOR):
            del os.environ[NO_ROOM_FOR]
            return WorkerFailure.of(call, DeviceOutOfMemory("the GPU ran out of memory"))
        return WorkerAnswer(call, ExecutableReady({}, 0.0))
    if isinstance(request, ComparePlans):
        time.sleep(request.fields[0].tolerance)
    facts = {"pid": str(os.getpid()), "seen": " ".join(seen)}
    return WorkerAnswer(call, DeviceDescription("losing", 1, (), (), facts))


if __name__ == "__main__":
    main()
