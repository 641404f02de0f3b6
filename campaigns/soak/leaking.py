"""``braid`` whose front end leaks on purpose, as a control.

    python -m campaigns.soak.leaking serve ...

LEAK_BYTES_A_SECOND and LEAK_FILE of the environment: how much, and the file that begins it. What
leaks before the server is looked at would only raise the level that growth is compared with.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from braid.server.cli import main as cli

TURN_S = 0.1


def leak(bytes_a_second: int, begin: Path) -> None:
    """Keep more and more memory from when a file is there, until the process ends."""
    kept = []
    while not begin.exists():
        threading.Event().wait(TURN_S)
    while True:
        kept.append(os.urandom(max(1, int(bytes_a_second * TURN_S))))
        threading.Event().wait(TURN_S)


if __name__ == "__main__":
    how = int(os.environ["LEAK_BYTES_A_SECOND"]), Path(os.environ["LEAK_FILE"])
    threading.Thread(target=leak, args=how, daemon=True, name="leak").start()
    sys.exit(cli.main())
