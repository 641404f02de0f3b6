"""Entry point of a device worker process, started by the server.

    python -m braid.engine.worker.process.main ──> ends with its parent ──> assembly.serve

Only ``serve`` loads torch: that takes seconds, in which the server may be killed.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from braid.core.child_process import end_with_parent
from braid.engine.runtime.priority import ends_before_the_server

if TYPE_CHECKING:  # it loads torch
    from braid.engine.worker.loop import Worker


def main() -> None:
    """Serve one link until it closes; its descriptors are inherited from the front end."""
    serve_link(arguments_of_worker())


def serve_link(
    arguments: argparse.Namespace, extend: Callable[[Worker], None] = lambda worker: None
) -> None:
    """Serve one link until it closes; ``extend`` may let the worker answer more requests."""
    end_with_parent(arguments.parent)
    ends_before_the_server()
    gc.disable()  # collections are a seventh of the CPU time that loading takes
    from braid.engine.worker.process.assembly import serve

    gc.freeze()
    gc.enable()
    serve(arguments, extend)


def arguments_of_worker() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Braid device worker (started by the server)")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id; ends with it")
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--options", required=True, help="WorkerOptions as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
