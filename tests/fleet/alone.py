"""Run a command in network, process, mount and IPC namespaces of its own.

    python -m tests.fleet.alone COMMAND...

The command is the first process of its namespace: once it has ended, however it did, the kernel
kills all that it started, and takes away the bridge, the mounts and /dev/shm with them. Root is
not needed where user namespaces are allowed. Where no namespace can be had, one line says so and
the command runs without.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

BRIDGE = "fleet"
PREFIX = "10.77.0"
HUB = f"{PREFIX}.254"
"""Address of what runs beside the machines: tests, PostgreSQL, S3."""

_PREPARE = f"""
set -e
mount -t tmpfs -o size=8g tmpfs /dev/shm
ip link set lo up
ip link add {BRIDGE} address 02:00:00:00:00:fe type bridge
ip addr add {HUB}/24 dev {BRIDGE}
ip link set {BRIDGE} up
"""


def missing() -> str:
    """Why there is no bridge here; empty: there is one."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    if any(line.strip().startswith(f"{BRIDGE}:") for line in lines):
        return ""
    return "no network of its own here: run `make test-fleet` (needs unshare and ip)"


def namespaces() -> list[str]:
    """The command before a command that puts it into namespaces of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
    kinds = ("--net", "--mount", "--pid", "--ipc", "--uts")
    return ["unshare", *user, *kinds, "--fork", "--kill-child", "--mount-proc"]


def run(command: list[str]) -> NoReturn:
    """Become a command that runs alone, or as it is where that cannot be.

    ``unshare`` takes this process's place and kills the command's processes if it is killed itself.
    """
    before = [*namespaces(), "sh", "-c", f'{_PREPARE}\nexec "$@"', "sh"]
    try:
        tried = subprocess.run([*before, "true"], capture_output=True, text=True, check=False)
        why = tried.stderr.strip().splitlines()[-1:] if tried.returncode else []
        is_possible = tried.returncode == 0
    except OSError as error:
        is_possible, why = False, [str(error)]
    if not is_possible:
        print(f"no namespaces here ({' '.join(why)}): the fleet's tests will skip", file=sys.stderr)
        before = []
    whole = [*before, *command]
    os.execvp(whole[0], whole)


if __name__ == "__main__":
    run(sys.argv[1:])
