"""A worker that starts and never says anything."""

import signal

if __name__ == "__main__":
    signal.pause()
