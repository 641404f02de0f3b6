"""What sysfs says of cores: which are hyperthreads of one core, which share a cache."""

from collections.abc import Callable, Sequence
from pathlib import Path

CPU_FOLDERS = Path("/sys/devices/system/cpu")

LARGEST_CACHE = "cache/index3/shared_cpu_list"
HYPERTHREADS = "topology/thread_siblings_list"


def cores_alike(
    cores: Sequence[int],
    file: str,
    folders: Path = CPU_FOLDERS,
    otherwise: Callable[[int], str] = lambda core: "",
) -> list[list[int]]:
    """Return groups of cores of which a file says the same, both in the order given.

    ``otherwise`` gives what counts for a core without the file: the same for all, by default.
    """
    together: dict[str, list[int]] = {}
    for core in cores:
        try:
            text = (folders / f"cpu{core}" / file).read_text().strip()
        except OSError:
            text = otherwise(core)
        together.setdefault(text, []).append(core)
    return list(together.values())
