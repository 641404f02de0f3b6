"""What control groups leave to a process, on made-up file systems and in a real group."""

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from braid.core.allowance import (
    CpuAllowance,
    Throttling,
    cpu_allowance,
    throttling,
    usable_memory_bytes,
)
from tests.control_groups import group_with_quota

CORES = tuple(range(64))
SECOND = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
FIRST = "33 32 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
HYBRID = "41 32 0:40 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw"
MEMORY = "34 32 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
SPACED = "30 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 none rw"
FIRST_QUOTA = "sys/fs/cgroup/cpu,cpuacct/{}cpu.cfs_quota_us"
FIRST_PERIOD = "sys/fs/cgroup/cpu,cpuacct/{}cpu.cfs_period_us"


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(CORES))


def system(root: Path, groups: str, mounts: str, files: Mapping[str, str]) -> Path:
    """A folder with the files of a system in it."""
    for name, text in {
        "proc/self/cgroup": groups + "\n",
        "proc/self/mountinfo": f"22 1 8:1 / / rw - ext4 /dev/root rw\n{mounts}\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota"),
    [
        ("0::/", SECOND, {"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ("0::/", SECOND, {"sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        ("0::/", SECOND, {}, math.inf),
        (
            "0::/kubepods/pod1/own",
            SECOND,
            {
                "sys/fs/cgroup/kubepods/pod1/own/cpu.max": "max 100000\n",
                "sys/fs/cgroup/kubepods/pod1/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/kubepods/cpu.max": "800000 100000\n",
            },
            2.5,
        ),
        ("0::/../elsewhere", SECOND, {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        ("0::/", SPACED, {"sys/fs/my groups/cpu.max": "50000 100000\n"}, 0.5),
        (
            "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc",
            FIRST.format(root="/docker/abc"),
            {FIRST_QUOTA.format(""): "150000\n", FIRST_PERIOD.format(""): "50000\n"},
            3,
        ),
        (
            "4:cpu,cpuacct:/a/b",
            FIRST.format(root="/"),
            {
                FIRST_QUOTA.format("a/b/"): "-1\n",
                FIRST_PERIOD.format("a/b/"): "100000\n",
                FIRST_QUOTA.format("a/"): "700000\n",
                FIRST_PERIOD.format("a/"): "100000\n",
            },
            7,
        ),
        (
            "4:cpu,cpuacct:/a\n0::/",
            f"{FIRST.format(root='/')}\n{HYBRID}",
            {FIRST_QUOTA.format("a/"): "200000\n", FIRST_PERIOD.format("a/"): "100000\n"},
            2,
        ),
        ("0::/", SECOND, {"sys/fs/cgroup/cpu.max": "6400000 100000\n"}, math.inf),
        ("0::/", SECOND, {"sys/fs/cgroup/cpu.max": "garbage\n"}, math.inf),
    ],
    ids=[
        *("container", "no limit", "no file", "nested", "outside", "spaced"),
        *("version 1", "nested version 1", "hybrid", "above the cores", "garbage"),
    ],
)
def test_the_smallest_quota_of_the_groups_around_a_process_counts(
    groups: str, mounts: str, files: Mapping[str, str], quota: float, tmp_path: Path
) -> None:
    assert cpu_allowance(system(tmp_path, groups, mounts, files)) == CpuAllowance(CORES, quota)


def test_a_system_without_groups_has_no_quota(tmp_path: Path) -> None:
    unreadable = system(tmp_path / "unreadable", "\n::\n7", "31 23 - \n32 cgroup2", {})

    assert cpu_allowance(tmp_path) == CpuAllowance(CORES, math.inf)
    assert cpu_allowance(unreadable) == CpuAllowance(CORES, math.inf)


@pytest.mark.parametrize(
    ("quota", "threads"), [(math.inf, 64), (4.0, 4), (4.9, 4), (1.5, 1), (0.5, 1), (0.01, 1)]
)
def test_threads_are_what_the_quota_pays_for_rounded_down_and_one_at_least(
    quota: float, threads: int
) -> None:
    assert CpuAllowance(CORES, quota).threads == threads


def test_memory_is_that_of_the_smallest_group_around_a_process(tmp_path: Path) -> None:
    second = {
        "sys/fs/cgroup/pod/own/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.max": "67108864\n",
    }
    first = {
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "33554432\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }

    nested = system(tmp_path / "second", "0::/pod/own", SECOND, second)
    older = system(tmp_path / "first", "7:memory:/a", MEMORY, first)

    assert usable_memory_bytes(nested) == 64 << 20
    assert usable_memory_bytes(older) == 32 << 20
    assert usable_memory_bytes(tmp_path / "none") > 64 << 20


IN_A_GROUP = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from braid.core.allowance import cpu_allowance
print(cpu_allowance().quota, cpu_allowance().threads)
"""


def test_a_process_in_a_group_with_half_a_cpu_knows_of_it() -> None:
    with group_with_quota(0.5) as group:
        command = [sys.executable, "-c", IN_A_GROUP, str(group)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "0.5 1\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        (
            "0::/pod/own",
            SECOND,
            {
                "sys/fs/cgroup/pod/own/cpu.stat": "usage_usec 9\nnr_periods 5\nnr_throttled 0\n",
                "sys/fs/cgroup/pod/cpu.stat": "usage_usec 9\nnr_periods 40\nnr_throttled 30\n"
                "throttled_usec 1500000\n",
            },
            Throttling(40, 30, 1.5),
        ),
        (
            "4:cpu,cpuacct:/a",
            FIRST.format(root="/"),
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.stat": "nr_periods 7\nnr_throttled 2\n"
                "throttled_time 250000000\n"
            },
            Throttling(7, 2, 0.25),
        ),
        ("0::/", SECOND, {}, Throttling()),
        ("0::/", SECOND, {"sys/fs/cgroup/cpu.stat": "garbage\n"}, Throttling()),
    ],
    ids=["version 2, of the group around", "version 1", "no file", "garbage"],
)
def test_throttled_periods_are_those_of_the_group_that_was_stopped_most(
    groups: str, mounts: str, files: Mapping[str, str], expected: Throttling, tmp_path: Path
) -> None:
    assert throttling(system(tmp_path, groups, mounts, files)) == expected
