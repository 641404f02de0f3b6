"""A child that ends as it is told: with an exit code, or minus the number of a signal."""

import signal
import sys

if __name__ == "__main__":
    status = int(sys.argv[1])
    if status < 0:
        signal.raise_signal(-status)
    sys.exit(status)
