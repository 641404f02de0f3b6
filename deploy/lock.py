"""Print a lock with hashes: ``python deploy/lock.py '.[fleet]' > build/requirements.lock``.

pip resolves, as for an image, what would be installed under constraints.txt from the index in use,
and reports the SHA-256 of each file it would take. ``pip install --require-hashes -r`` then takes
these files and no others; the sources themselves follow with ``--no-deps``.

The lock is of one index, platform and Python, so it is made where the image is built and is not
kept in the repository. Files without a hash (of a folder, of a repository) are refused.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def locked(report: Mapping[str, Any]) -> list[str]:
    """Return the lines of a lock from a report of pip; what is built from a folder is left out.

    Raises:
        ValueError: a file has no SHA-256.
    """
    lines = []
    for package in report["install"]:
        if "dir_info" in package["download_info"]:
            continue
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        digest = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not digest:
            raise ValueError(f"{name} has no SHA-256: {package['download_info']['url']}")
        lines.append(f"{name}=={package['metadata']['version']} --hash=sha256:{digest}")
    return sorted(lines)


def main(requirements: Sequence[str]) -> int:
    """Ask pip and print the lock."""
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"),
        *("--report", "-", "-c", "constraints.txt", *requirements),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return done.returncode
    sys.stdout.write("".join(f"{line}\n" for line in locked(json.loads(done.stdout))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["."]))
