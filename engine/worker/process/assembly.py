"""What a device worker process is made of: its limits, its links, its device, its loop."""

import argparse
import json
import mmap
import os
import resource
import signal
import socket
import threading
from pathlib import Path

import numpy as np

from braid.core.errors import BraidError, DeviceLost
from braid.core.json_form import from_json
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.core_distance import shared_caches
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.lane_groups import in_groups
from braid.engine.cpu.segments import find_runner
from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import (
    AskStatus,
    DeviceIsLost,
    Message,
    StopRun,
    StopStep,
    WorkerCall,
    WorkerFailure,
)
from braid.engine.link.options import LOST_EXIT_CODE, WorkerOptions
from braid.engine.ops.meta_kernels import leave_compiler_out
from braid.engine.processes.log_lines import log_as_lines
from braid.engine.runtime.memory import keep_freed_memory
from braid.engine.runtime.priority import process_gives_way
from braid.engine.runtime.threads import for_inference, usable_cpus
from braid.engine.timing.samples import TimerOptions
from braid.engine.worker.loop import Worker
from braid.engine.worker.process.current_work import CurrentWork

LOCKED_BYTES = 256 << 20  # most that is page-locked for requests, by each worker of a GPU


@for_inference()
def serve(arguments: argparse.Namespace) -> None:
    options: WorkerOptions = from_json(WorkerOptions, json.loads(arguments.options))
    if options.gives_way:
        process_gives_way()
    if options.memory_bytes:
        limit_memory(options.memory_bytes)
    log_as_lines()
    keep_freed_memory()
    for number in (signal.SIGINT, signal.SIGHUP):  # the terminal is the front end's business
        signal.signal(number, signal.SIG_IGN)
    work = CurrentWork()
    answer_status(socket.socket(fileno=arguments.control_fd), work)
    channel = BlockingChannel(socket.socket(fileno=arguments.link_fd))
    arena = mmap.mmap(arguments.arena_fd, 0)  # all of it
    try:
        backend = cpu_backend(options) if options.gpu is None else _cuda(options, arena)
    except BraidError as error:
        for message in channel.receive() or ():
            if isinstance(message, WorkerCall):
                channel.send(WorkerFailure.of(message.number, error))
        return
    try:
        Worker(channel, arena, backend, work).serve()
    except DeviceLost as error:
        channel.send(DeviceIsLost(str(error)))
        # Not by the interpreter's own way out: libraries would wait for the device.
        os._exit(LOST_EXIT_CODE)


def cpu_backend(options: WorkerOptions) -> Backend:
    """Make a CPU of some cores the device of the calling thread, which leads its threads."""
    leave_compiler_out()
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    usable = usable_cpus()
    in_order = in_groups(usable, shared_caches(usable))
    cpus = in_order[: options.threads] if options.pin_threads else ()
    # More threads than cores is the operator's wish; then there is nothing to pin to.
    executor = CpuExecutor(options.threads, cpus if len(cpus) == options.threads else ())
    if (runner := find_runner()) is not None:
        runner.let_lanes_spin(not options.cpu_quota)
    timer = TimerOptions(options.timing_repeats)
    return CpuBackend(executor, options.activation_bytes, timer, cpu_quota=options.cpu_quota)


def _cuda(options: WorkerOptions, arena: mmap.mmap) -> Backend:
    """Open the only GPU that this process sees; inputs are copied to it from the arena."""
    from braid.engine.cuda.opening import open_backend  # Inductor comes along, which takes a second

    timer = TimerOptions(options.timing_repeats)
    backend = open_backend(options.activation_bytes, timer, options.threads)
    # The start of the arena, where most requests lie: it gives low addresses first.
    backend.lock_pages(np.frombuffer(arena, np.uint8)[:LOCKED_BYTES])
    return backend


def limit_memory(size_bytes: int) -> None:
    """Limit this process's own memory, with what it uses already; a lower hard limit counts.

    RLIMIT_DATA leaves out mapped files (800 MB of libraries), reservations, and memory shared with
    the front end. It counts data of libraries that is never written to, which is added. On a GPU
    there is no limit: CUDA reserves without end. An allocation over it fails, and with it one
    request (engine/runtime/memory.py); else the kernel would look for a process to kill.
    """
    size_bytes += max(0, _status_bytes("VmData") - _status_bytes("RssAnon"))
    _, highest = resource.getrlimit(resource.RLIMIT_DATA)
    if highest != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, highest)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, size_bytes))


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def answer_status(control: socket.socket, work: CurrentWork) -> None:
    """Start the thread that answers questions for the status, until the process ends.

    It answers while the device thread is in a library, so it tells a long run from a process that
    is stopped. When the front end is gone it ends the process, whatever the device thread is in.
    """
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
