"""``braid`` whose front end leaks on purpose, as a control: LEAK_BYTES_A_SECOND of the environment.

python -m tests.soak.leaking serve ...
"""

from __future__ import annotations

import os
import sys
import threading

from braid.server.cli import main as cli

VARIABLE = "LEAK_BYTES_A_SECOND"
TURN_S = 0.1


def leak(bytes_a_second: int) -> None:
    """Keep more and more memory, until the process ends."""
    kept = []
    while True:
        kept.append(os.urandom(max(1, int(bytes_a_second * TURN_S))))
        threading.Event().wait(TURN_S)


if __name__ == "__main__":
    rate = int(os.environ[VARIABLE])
    threading.Thread(target=leak, args=(rate,), daemon=True, name="leak").start()
    sys.exit(cli.main())
