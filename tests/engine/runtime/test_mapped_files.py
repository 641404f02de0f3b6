"""Pages of mapped files go back to the system, and nothing that was written is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

READ_AND_GIVE_BACK = """
import mmap, re, sys
from pathlib import Path
from braid.engine.runtime.mapped_files import give_back_pages

SIZE = 4 << 20

def mapped(path, flags):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), SIZE, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)

def resident(path):
    text = Path("/proc/self/smaps").read_text()
    return [int(size) for size in re.findall(rf" {path}\\n(?:.*\\n)*?Rss: +(\\d+) kB", text)]

files = [Path(sys.argv[1], folder, "weights") for folder in "ab"] + [Path(sys.argv[1], "a/other")]
for number, file in enumerate(files, 1):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes([number]) * SIZE)
read, written, other = (mapped(file, mmap.MAP_PRIVATE) for file in files)
written[7] = 99
for one in (read, written, other):
    one[:].count(0)
given = give_back_pages("weights")
print(given, *map(resident, files))
print(read[:] == bytes([1]) * SIZE, written[7], written[8])
"""


def test_pages_that_were_read_go_back_and_files_and_what_was_written_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ_AND_GIVE_BACK, str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    pages, content = done.stdout.splitlines()
    assert pages == f"{4 << 20} [0] [4096] [4096]"
    assert content == "True 99 2"
