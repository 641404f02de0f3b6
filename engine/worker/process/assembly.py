"""What a device worker process is made of: its limits, its links, its device, its loop."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket

import torch

from braid.core.errors import BraidError, DeviceLost
from braid.core.json_form import from_json
from braid.engine.cpu.backend import CpuBackend
from braid.engine.cpu.core_distance import shared_caches
from braid.engine.cpu.executor import CpuExecutor
from braid.engine.cpu.lane_groups import in_groups
from braid.engine.cpu.segments import find_runner
from braid.engine.device import Backend
from braid.engine.link.frames import BlockingChannel
from braid.engine.link.messages import DeviceIsLost, WorkerCall, WorkerFailure
from braid.engine.link.options import LOST_EXIT_CODE, WorkerOptions
from braid.engine.ops.meta_kernels import leave_compiler_out
from braid.engine.processes.log_lines import log_as_lines
from braid.engine.runtime.memory import keep_freed_memory
from braid.engine.runtime.priority import process_gives_way
from braid.engine.runtime.threads import usable_cpus
from braid.engine.timing.samples import TimerOptions
from braid.engine.worker.loop import Worker
from braid.engine.worker.process.current_work import CurrentWork
from braid.engine.worker.process.memory_limit import limit_memory
from braid.engine.worker.process.status_thread import answer_status

LOCKED_BYTES = 256 << 20  # most that is page-locked for requests, by each worker of a GPU


@torch.inference_mode()
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
    torch.set_num_threads(options.threads)
    from braid.engine.cuda.opening import open_backend  # Inductor comes along, which takes a second

    timer = TimerOptions(options.timing_repeats)
    backend = open_backend(options.activation_bytes, timer, options.threads)
    # The start of the arena, where most requests lie: it gives low addresses first.
    backend.lock_pages(torch.frombuffer(arena, dtype=torch.uint8)[:LOCKED_BYTES])
    return backend
