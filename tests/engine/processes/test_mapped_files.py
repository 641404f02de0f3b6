"""Pages of mapped files go back to the system, and nothing that was written is lost."""

import subprocess
import sys
from pathlib import Path

READ_AND_GIVE_BACK = """
import mmap, re, sys
from pathlib import Path
from braid.engine.processes.mapped_files import give_back_pages

SIZE = 4 << 20

def mapped(path, access):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), SIZE, flags=mmap.MAP_PRIVATE, prot=access)

def resident(path):
    text = Path("/proc/self/smaps").read_text()
    return [int(size) for size in re.findall(rf" {path}\\n(?:.*\\n)*?Rss: +(\\d+) kB", text)]

files = [Path(sys.argv[1], name) for name in ("a/weights", "b/weights", "a/other", "a/library")]
for number, file in enumerate(files, 1):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes([number]) * SIZE)
read, written, other = (mapped(file, mmap.PROT_READ | mmap.PROT_WRITE) for file in files[:3])
library = mapped(files[3], mmap.PROT_READ)
written[7] = 99
for one in (read, written, other, library):
    one[:].count(0)
given = give_back_pages("weights")
print(given >= 2 * SIZE, *map(resident, files))
print(read[:] == bytes([1]) * SIZE, written[7], written[8], library[:] == bytes([4]) * SIZE)
"""


def test_pages_that_were_read_go_back_and_files_and_what_was_written_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ_AND_GIVE_BACK, str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    pages, content = done.stdout.splitlines()
    assert pages == "True [0] [4096] [4096] [0]"
    assert content == "True 99 2 True"
