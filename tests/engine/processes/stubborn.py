"""A child that prints, ignores SIGTERM, and starts a process that holds its output open."""

import signal
import subprocess
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        print("noise\n" * 10_000, sys.argv[1:], sleeper.pid, flush=True)
        if "stays" in sys.argv:
            sleeper.wait()
        sys.stdout.flush()
        signal.raise_signal(signal.SIGSEGV)
