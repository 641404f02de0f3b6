"""Entry point of an ingress process, started by the server.

    greeted by the owner ──> listens ──> ... ──> the owner is gone ──> calls in flight fail, it ends

The link is a socket pair: it ends with the owner, however that ends. Signals are not heeded, for a
service manager sends them to every process: the owner drains first, and then ends this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
from pathlib import Path

import grpc

from core.errors import StartupError, Unavailable
from engine.allocator import keep_freed_memory
from engine.worker.arena import Arena
from engine.worker.frames import Message
from server.cores import keep_off
from server.grpc_ports import (
    bind_main,
    configured_certificates,
    configured_tokens,
    main_gate,
    public_server,
)
from server.ingress.forwarding import Forwarder
from server.ingress.inference import AskFirst, InferenceHandlers, Underway
from server.ingress.owner_link import OwnerLink
from server.ingress.vitals import SAY_SECONDS
from server.logs import configure_logging
from server.settings import Settings, settings_from_json

LINGER_SECONDS = 0.2  # for the last answers to leave the process


async def serve(options: argparse.Namespace) -> None:
    """Take connections until the owner is gone."""
    owner = os.getppid()
    link = OwnerLink(
        Arena(options.memory_bytes, options.requests_fd),
        Arena(options.memory_bytes, options.replies_fd),
    )
    ours = socket.socket(fileno=options.link_fd)
    ours.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    try:
        greeting = await link.greeting
    except Unavailable:
        return
    settings, underway = settings_from_json(greeting["settings"]), Underway()
    configure_logging(settings.log_level, settings.log_format)
    link.on_notice = _set_log_level
    _set_log_level(greeting)
    owner_socket = Path(greeting["socket"])
    try:
        server = _listen(settings, link, owner_socket, underway)
        await server.start()
    except StartupError as error:
        link.tell({"op": "failed", "reason": str(error)})
        await link.lost.wait()
        return
    keep_off(set(greeting["keep_off"]))
    gc.collect()
    gc.freeze()
    link.tell({"op": "up"})
    await _say_how_it_is(link, underway)
    await asyncio.sleep(LINGER_SECONDS)
    if os.getppid() != owner:  # it was killed, and nobody else tidies up
        shutil.rmtree(owner_socket.parent, ignore_errors=True)


def _listen(
    settings: Settings, link: OwnerLink, owner_socket: Path, underway: Underway
) -> grpc.aio.Server:
    """The server of the port that all ingress processes share.

    Raises:
        StartupError: tokens, certificates or the port cannot be used.
    """
    gate = main_gate(settings, configured_tokens(settings))
    server = public_server(settings, [*gate, AskFirst(link)], shares_port=True)
    is_traced = settings.tracing != "off"
    server.add_generic_rpc_handlers(
        (
            InferenceHandlers(link, underway, is_traced=is_traced),
            Forwarder(owner_socket, underway),
        )
    )
    bind_main(server, settings, configured_certificates(settings))
    return server


async def _say_how_it_is(link: OwnerLink, underway: Underway) -> None:
    """Tell the owner now and then, until it is gone."""
    while not link.lost.is_set():
        link.tell({"op": "state", "calls": underway.calls, "refused": link.refused})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAY_SECONDS):
                await link.lost.wait()


def _set_log_level(notice: Message) -> None:
    logging.getLogger().setLevel(notice["log_level"])


async def _run(options: argparse.Namespace) -> None:
    """Serve, then end the process with its connections still open, as the owner does."""
    await serve(options)
    logging.shutdown()
    os._exit(0)


def main() -> None:
    """Run one ingress; its descriptors are inherited from the owner."""
    parser = argparse.ArgumentParser(description="Braid ingress (started by the server)")
    for name in ("link-fd", "requests-fd", "replies-fd", "memory-bytes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
