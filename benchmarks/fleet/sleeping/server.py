"""``braid serve`` whose device sleeps: the product's server with another worker module.

python -m benchmarks.fleet.sleeping.server serve --store FOLDER ...
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial

from braid.compiler.bench import ArtefactOf, ServingProcess
from braid.engine.link.shared_memory import Arena
from braid.engine.link.supervisor import WorkerLink
from braid.server.app import process
from braid.server.cli import main as cli
from braid.server.cli.local import serve

MODULE = "benchmarks.fleet.sleeping.worker"


def sleeping_host(link: WorkerLink, arena: Arena, artefact_of: ArtefactOf) -> ServingProcess:
    """Have a device's link, which has started nothing yet, start the worker that sleeps.

    What registrations measure goes to that worker, too, and is refused.
    """
    link.options = replace(link.options, module=MODULE)
    return ServingProcess(link)


class Serve:
    """The command ``serve`` on a device that sleeps."""

    add_parser = staticmethod(serve.add_parser)

    def run(self, args: argparse.Namespace, /) -> int:
        return serve.run(args, partial(process.run, make_host=sleeping_host))


if __name__ == "__main__":
    cli.COMMANDS["serve"] = Serve()
    sys.exit(cli.main())
