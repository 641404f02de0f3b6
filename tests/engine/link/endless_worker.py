"""A worker whose kernels never end, whatever is said to them: only its control thread answers."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from pathlib import Path

from braid.engine.link.frames import BlockingChannel
from braid.engine.worker.process.current_work import CurrentWork
from braid.engine.worker.process.status_thread import answer_status

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
            if message["op"] == "infer":
                with activity.running(message["id"]):
                    if message["number"] != FINE:
                        Path(os.environ[BEGAN]).write_text("began")  # once somebody reads it
                        never_end()
                activity.ended(message["id"])
            elif message["op"] != "device":
                activity.begin_work()
                never_end()
            channel.send({"id": message["id"], "result": {"pid": os.getpid(), "compute_us": 7}})


def never_end() -> None:
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
