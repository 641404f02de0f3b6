"""The worker's side of the watch that is kept over it: a thread with a socket of its own.

    front end ──AskStatus──> WorkerStatus, as ``CurrentWork`` has it
              ──StopRun, StopStep──> ``CurrentWork``         (engine/link/messages.py)

It answers while the device thread is in a library, so it tells a long run from a process that is
stopped. When the front end is gone it ends the process, whatever the device thread is in.
"""

from __future__ import annotations

import os
import socket
import threading

from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import AskStatus, Message, StopRun, StopStep
from braid.engine.worker.process.current_work import CurrentWork


def answer_status(control: socket.socket, work: CurrentWork) -> None:
    """Start the thread that answers questions for the status, until the process ends."""
    channel = BlockingChannel(control)
    threading.Thread(target=_answer, args=(channel, work), name="control", daemon=True).start()


def _answer(channel: BlockingChannel, work: CurrentWork) -> None:
    try:
        while (messages := channel.receive()) is not None:
            for message in messages:
                _follow(message, channel, work)
    except OSError:
        pass  # as below
    os._exit(0)  # the front end is gone, or wants this process gone


def _follow(message: Message, channel: BlockingChannel, work: CurrentWork) -> None:
    match message:
        case StopRun(call, reason):
            work.stop(call, reason)
        case StopStep(reason):
            work.stop_step(reason)
        case AskStatus():
            channel.send(work.status())
