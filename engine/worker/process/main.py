"""Entry point of a device worker process, started by the server.

fork server ──> braid.engine.worker.process.main ──> assembly.serve
"""

import argparse

from braid.engine.runtime.priority import ends_before_the_server
from braid.engine.worker.process.assembly import serve


def main() -> None:
    """Serve one link until it closes; its descriptors are inherited from the front end."""
    parser = argparse.ArgumentParser(description="Braid device worker (started by the server)")
    parser.add_argument("--link-fd", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--arena-fd", type=int, required=True)
    parser.add_argument("--options", required=True, help="WorkerOptions as JSON")
    arguments = parser.parse_args()
    ends_before_the_server()
    serve(arguments)


if __name__ == "__main__":
    main()
