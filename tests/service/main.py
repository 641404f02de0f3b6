"""``braid`` with another composition: ``serve`` measures on a CPU in the worker that serves.

A process that only measures loads torch for two seconds, in each of a hundred tests.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from braid.server.cli import main as cli
from braid.server.cli.local import serve

if TYPE_CHECKING:  # the command loads them
    from braid.compiler.bench import ArtefactOf, ServingProcess
    from braid.engine.link.shared_memory import Arena
    from braid.engine.link.supervisor import WorkerLink
    from braid.server.settings import Settings


class Serve:
    """The command ``serve`` with measurements in the worker that serves."""

    add_parser = staticmethod(serve.add_parser)

    def run(self, args: argparse.Namespace, /) -> int:
        return serve.run(args, run_server)


def run_server(settings: Settings) -> None:
    from braid.server.app import process

    process.run(settings, serving_process)


def serving_process(link: WorkerLink, arena: Arena, artefact_of: ArtefactOf) -> ServingProcess:
    """Return the serving worker of any device."""
    from braid.compiler.bench import ServingProcess

    return ServingProcess(link)


if __name__ == "__main__":
    cli.COMMANDS["serve"] = Serve
    sys.exit(cli.main())
