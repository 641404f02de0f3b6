"""What the limit of a worker's memory counts."""

import subprocess
import sys

LIMITED = """
import mmap
from braid.engine.worker.process.assembly import limit_memory

MIB = 1 << 20
data_of_libraries = mmap.mmap(-1, 600 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # untouched
limit_memory(512 * MIB)
fits = mmap.mmap(-1, 256 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
try:
    mmap.mmap(-1, 512 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
except OSError as error:
    print(error.strerror)
"""


def test_data_of_libraries_that_nobody_writes_to_takes_no_room() -> None:
    """A CUDA build of torch has 530 MB of it."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("Cannot allocate memory\n", "")
