"""Entry point of a device worker process, started by the server.

    python -m braid.engine.worker.process.main ──> ends with its parent ──> assembly.serve

Only ``serve`` loads torch: that takes seconds, in which the server may be killed.
"""

from __future__ import annotations

import argparse

from braid.core.child_process import end_with_parent
from braid.engine.runtime.priority import ends_before_the_server


def main() -> None:
    """Serve one link until it closes; its descriptors are inherited from the front end."""
    options = _options()
    end_with_parent(options.parent)
    ends_before_the_server()
    from braid.engine.worker.process.assembly import serve

    serve(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Braid device worker (started by the server)")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="process id; ends with it")
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--arena-bytes", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--cores", type=_numbers, required=True, help="of the CPU; empty: all")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True, help="0: unlimited")
    parser.add_argument("--activation-bytes", type=int, required=True)
    parser.add_argument("--timing-repeats", type=int, required=True)
    parser.add_argument("--pin-threads", action=argparse.BooleanOptionalAction, required=True)
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


if __name__ == "__main__":
    main()
