"""Entry point of a device worker process, started by the server."""

from __future__ import annotations

import argparse
import logging
import mmap
import signal
import socket
import sys

import torch

from engine.allocator import keep_freed_memory
from engine.executor.affinity import usable_cpus
from engine.executor.cpu import CpuExecutor
from engine.timing.stage_timer import TimerOptions
from engine.worker.cpu import CpuBackend
from engine.worker.frames import BlockingChannel
from engine.worker.worker import Worker


@torch.inference_mode()
def main() -> None:
    """Serve one link until it closes; its descriptors are inherited from the front end."""
    options = _options()
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's business
    backend = _cpu_backend(options)
    channel = BlockingChannel(socket.socket(fileno=options.link_fd))
    arena = mmap.mmap(options.arena_fd, options.arena_bytes)
    Worker(channel, arena, backend).serve()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Braid device worker (started by the server)")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--arena-bytes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--activation-bytes", type=int, required=True)
    parser.add_argument("--timing-repeats", type=int, required=True)
    parser.add_argument("--pin-threads", action=argparse.BooleanOptionalAction, required=True)
    return parser.parse_args()


def _cpu_backend(options: argparse.Namespace) -> CpuBackend:
    cpus = usable_cpus()[: options.threads] if options.pin_threads else ()
    # More threads than cores is the operator's wish; then there is nothing to pin to.
    executor = CpuExecutor(options.threads, cpus if len(cpus) == options.threads else ())
    return CpuBackend(executor, options.activation_bytes, TimerOptions(options.timing_repeats))


if __name__ == "__main__":
    main()
