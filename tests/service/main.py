"""``braid`` with another composition: ``serve`` measures on a CPU in the worker that serves.

A process that only measures loads torch for two seconds, in each of a hundred tests.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from braid.compiler.bench import ArtefactOf, ServingProcess
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.server.app import process
from braid.server.cli import main as cli
from braid.server.cli.local import serve


class Serve:
    """The command ``serve`` with measurements in the worker that serves."""

    add_parser = staticmethod(serve.add_parser)

    def run(self, args: argparse.Namespace, /) -> int:
        """Run the server and return the exit code."""
        return serve.run(args, partial(process.run, make_host=serving_process))


def serving_process(link: WorkerLink, arena: Arena, artefact_of: ArtefactOf) -> ServingProcess:
    """Return the serving worker of any device."""
    return ServingProcess(link)


if __name__ == "__main__":
    cli.COMMANDS["serve"] = Serve()
    sys.exit(cli.main())
