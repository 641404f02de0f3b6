"""A child that prints what it was told and what it has, as JSON."""

import json
import os
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    with os.scandir("/proc/self/fd") as entries:
        numbers = sorted(int(entry.name) for entry in entries)
    facts = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "descriptors": [n for n in numbers if os.path.exists(f"/proc/self/fd/{n}")],
        "folder": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "leads a session": os.getsid(0) == os.getpid(),
        "command": Path("/proc/self/cmdline").read_text(),
        "random": random.random(),
    }
    print(json.dumps(facts))
