"""A server as a process: runs until it is told to stop, then ends without losing a request.

SIGTERM, SIGINT and SIGHUP (its terminal was closed) tell it so; SIGHUP not under ``nohup``.
"""

import asyncio
import logging
import os
import signal
from typing import NoReturn

import uvloop

from braid.compiler.bench import MakeMeasuringHost, measuring_host
from braid.core.background import ends_before
from braid.core.errors import BraidError
from braid.core.own_threads import OwnThreads
from braid.engine.runtime.memory import keep_freed_memory
from braid.server.app.front_end import FrontEnd
from braid.server.models.preload import check_models
from braid.server.observability.logs import configure_logging
from braid.server.repository.repository import check_repository
from braid.server.settings import Settings
from braid.server.variables import unknown_variables

log = logging.getLogger("braid.frontend")


def run(settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> None:
    """Run a server in this process until it is told to stop, which ends the process."""
    keep_freed_memory()
    configure_logging(settings.log_level, settings.log_format)
    for name, similar in unknown_variables().items():
        log.warning("a variable is not known", extra={"variable": name, "similar": similar or None})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, make_host))


async def serve(settings: Settings, make_host: MakeMeasuringHost = measuring_host) -> NoReturn:
    """Run a server until a signal tells it to stop, then end the process. Raises StartupError."""
    checking = OwnThreads("checks", 1)
    await checking.run(check_models, settings.preload, settings.ready_models)
    await checking.run(check_repository, settings.model_repository)
    front = FrontEnd(settings, make_host)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):
            loop.add_signal_handler(number, stopping.set)
    try:
        if await ends_before(stopping, front.start()):
            front.settle()
            await stopping.wait()
        log.info("stopping: accepted requests are finished first")
    except BraidError:
        await front.ports.close()  # before the first caller
        raise
    finally:
        await front.stop()
    log.info("stopped")
    leave()


def leave() -> NoReturn:
    """End the process after ``FrontEnd.stop``, its connections still open.

    Not by leaving the event loop: that cancels the handlers of calls that just came in, and
    their callers read CANCELLED.
    """
    logging.shutdown()
    os._exit(0)
