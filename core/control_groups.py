"""Control groups that limit this process, of version 1 and 2 (cgroups(7)).

/proc/self/cgroup     which group, by controller          ┐
/proc/self/mountinfo  where its hierarchy is mounted      ┴─> folders, from its own group upwards

In a container the outermost group in sight is often the container's own, mounted as if it were the
root; without a name space of its own for groups, only a part of the hierarchy is mounted.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

ROOT = Path("/")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def control_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """Folders of the groups that limit this process by ``controller``, ``cpu`` or ``memory``.

    Args:
        controller: by its name.
        root: where the system's files are, for tests.

    Returns:
        the process's own group first, then those around it; of both versions, if both are mounted.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    own = {}  # controller, or "" for version 2 -> path of the group in its hierarchy
    for line in groups:
        controllers, _, path = line.partition(":")[2].partition(":")
        own.update(dict.fromkeys(controllers.split(","), path))
    folders: list[Path] = []
    for line in mounts:
        place, _, kind = line.partition(" - ")
        file_system, _, options = kind.partition(" ")
        is_second = file_system == "cgroup2"
        is_first = file_system == "cgroup" and controller in re.split("[ ,]", options)
        if not (is_first or is_second):
            continue
        group = own.get("" if is_second else controller)
        if group is not None:
            shown, mounted_at = map(_unescaped, place.split(" ")[3:5])
            folders += _upwards(root / mounted_at.lstrip("/"), group, shown)
    return folders


def _upwards(mounted_at: Path, group: str, shown: str) -> list[Path]:
    """Folders from a group to the top of its mount, which shows the hierarchy from ``shown`` on."""
    try:
        below = PurePosixPath(group).relative_to(shown)
    except ValueError:  # the group lies outside of what is mounted
        below = PurePosixPath()
    if ".." in below.parts:
        below = PurePosixPath()
    return [mounted_at / part for part in (below, *below.parents)]


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)
