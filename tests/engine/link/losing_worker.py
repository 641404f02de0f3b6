"""A worker that takes its time to be prepared, whose device is lost at the first request, and that
closes its link without ending if it is told to."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import time

from braid.engine.link.frames import BlockingChannel
from braid.engine.link.options import LOST_EXIT_CODE

FINE = 2
"""The executable that can be run."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--link-fd", type=int, required=True)
    options, _ = parser.parse_known_args()
    link = socket.socket(fileno=options.link_fd)
    channel = BlockingChannel(link)
    seen: list[str] = []
    while messages := channel.receive():
        for message in messages:
            seen.append(message["op"])
            if message["op"] == "infer" and message.get("number") != FINE:
                channel.send({"lost": "the GPU failed while running: an illegal memory access"})
                os._exit(LOST_EXIT_CODE)
            if message["op"] == "leave":
                link.close()
                signal.pause()
            if message["op"] == "prepare":
                time.sleep(message.get("seconds", 0))
                if message.get("program", {}).get("digest") == os.environ.get(
                    "OMP_TEST_HAS_NO_ROOM_FOR", ""
                ):
                    del os.environ["OMP_TEST_HAS_NO_ROOM_FOR"]
                    error = {"type": "DeviceOutOfMemory", "message": "the GPU ran out of memory"}
                    channel.send({"id": message["id"], "error": error})
                    continue
            result = {"pid": os.getpid(), "seen": seen, "outputs": {}, "compute_us": 7}
            channel.send({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
