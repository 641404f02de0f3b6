"""A worker whose kernels never end, whatever is said to them: only its control thread answers."""

import argparse
import os
import signal
import socket
from pathlib import Path
from typing import NoReturn

from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    AnyReply,
    DescribeDevice,
    DeviceDescription,
    RunDone,
    RunExecutable,
    WorkerAnswer,
    WorkerCall,
)
from braid.engine.worker.process.assembly import answer_status
from braid.engine.worker.process.current_work import CurrentWork

BEGAN = "OMP_TEST_BEGAN"
"""Names the pipe that such a run begins with writing to; a variable that workers are told."""

FINE = 2
"""The executable whose runs end."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    options, _ = parser.parse_known_args()
    activity = CurrentWork()
    answer_status(socket.socket(fileno=options.control_fd), activity)
    channel = BlockingChannel(socket.socket(fileno=options.link_fd))
    while messages := channel.receive():
        for message in messages:
            assert isinstance(message, WorkerCall)
            channel.send(WorkerAnswer(message.number, reply_to(message, activity)))


def reply_to(call: WorkerCall, activity: CurrentWork) -> AnyReply:
    match call.request:
        case RunExecutable(number):
            with activity.running(call.number):
                if number != FINE:
                    Path(os.environ[BEGAN]).write_text("began")  # once somebody reads it
                    never_end()
            activity.ended(call.number)
            return RunDone(7)
        case DescribeDevice():
            return DeviceDescription("endless", 1, (), (), {"pid": str(os.getpid())})
        case _:
            activity.begin_work()
            return never_end()


def never_end() -> NoReturn:
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
