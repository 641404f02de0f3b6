"""The CPU image, built for real and run as docker-compose.yml says, with Debian's tools.

    debootstrap ──> base ──┐
    pip download ──> wheels ┴──buildah──> image ──podman──> container

Nothing is fetched from a registry of images. All of it, storage included, lies in one folder, which
goes at the end with what was mounted there.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ROOT

PROGRAMS = ("buildah", "podman", "runc", "debootstrap", "git")
ROOM_BYTES = 12 << 30
LIMIT = 4096  # of open files and processes: podman's own are more than some machines let it give
BRIDGE = Path("/sys/class/net/cni-podman0")
BASE, IMAGE = "localhost/braid-base", "localhost/braid:cpu"

CONTAINERS = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/libpod"
"""
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class CannotBuild(Exception):
    """Images cannot be built or run on this machine; one line says why."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """A folder with everything that images and containers take."""

    folder: Path
    suite: str  # that this machine runs, and where it comes from
    mirror: str
    had_bridge: bool

    @staticmethod
    def open(folder: Path) -> Workshop:
        """Make the folder ready.

        Raises:
            CannotBuild: a program, a right or room is missing here.
        """
        if os.geteuid():
            raise CannotBuild("images are built as root only")
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise CannotBuild(f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
        if shutil.disk_usage(folder).free < ROOM_BYTES:
            raise CannotBuild(f"needs {ROOM_BYTES >> 30} GiB on the disk of {folder}")
        workshop = Workshop(folder, *this_distribution(), BRIDGE.exists())
        (folder / "temporary").mkdir()
        (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder))
        for driver in ("overlay", "vfs"):
            storage = STORAGE.format(folder=folder, driver=driver)
            (folder / "storage.conf").write_text(storage)
            try:
                workshop.image_of(folder / "temporary", "localhost/nothing")
            except CannotBuild as error:
                problem = error
            else:
                return workshop
        raise CannotBuild(f"buildah cannot run here: {problem}")

    def run(self, *command: str, limit_s: float = 120) -> str:
        """Run a command on this folder's storage; returns its output.

        Raises:
            CannotBuild: it failed; the message has its last words.
        """
        environment = {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "TMPDIR": str(self.folder / "temporary"),
        }
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if ran.returncode:
            words = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
            raise CannotBuild(f"{' '.join(command[:3])}: {' / '.join(words[-3:])}")
        return ran.stdout

    def base(self) -> None:
        """Make an image of the Debian or Ubuntu that this machine runs."""
        root = str(self.folder / "base")
        included = ("--variant=minbase", "--include=ca-certificates")
        self.run("debootstrap", *included, self.suite, root, self.mirror, limit_s=600)
        self.image_of(Path(root), BASE)
        shutil.rmtree(root)

    def image_of(self, folder: Path, name: str) -> None:
        container = self.run("buildah", "from", "scratch").strip()
        self.run("buildah", "add", container, str(folder), "/", limit_s=300)
        self.run("buildah", "commit", container, name, limit_s=300)
        self.run("buildah", "rm", container)

    def wheels(self) -> None:
        """Download what the image installs, as this machine's pip finds it."""
        pip = (sys.executable, "-m", "pip", "download", "--quiet")
        folder = str(self.folder / "wheels")
        constraints = ("-c", "constraints.txt")
        wanted = (".[openvino,server]", "setuptools>=77")
        self.run(*pip, "-d", folder, *constraints, *wanted, limit_s=900)

    def build(self, commit: str) -> None:
        """Build the image from the Dockerfile, with the base and the wheels."""
        given = {
            "VARIANT": "cpu",
            "CPU_BASE": BASE,
            "CUDA_BASE": BASE,  # of a stage that is not used
            "COMMIT": commit,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels",
        }
        arguments = [f"--build-arg={name}={value}" for name, value in given.items()]
        self.run(
            *("buildah", "build", "--isolation", "chroot", "--format", "docker"),
            *(*arguments, f"--volume={self.folder}/wheels:/wheels:ro", "--tag", IMAGE, "."),
            limit_s=1800,
        )

    def close(self) -> None:
        for command in (
            ("podman", "rm", "--all", "--force", "--time", "1"),
            ("podman", "volume", "rm", "--all", "--force"),
            ("buildah", "rm", "--all"),
        ):
            if (self.folder / "storage.conf").exists():
                self._try_to(*command)
        with Path("/proc/mounts").open() as mounts:
            here = [line.split()[1] for line in mounts if f" {self.folder}/" in line]
        for mount in sorted(here, reverse=True):
            self._try_to("umount", mount)
        if not self.had_bridge and BRIDGE.exists() and shutil.which("ip"):
            self._try_to("ip", "link", "delete", BRIDGE.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _try_to(self, *command: str) -> None:
        try:
            self.run(*command)
        except CannotBuild as error:
            sys.stderr.write(f"{error}\n")


def this_distribution() -> tuple[str, str]:
    """Name and mirror of the release that this machine runs, as apt has it.

    Raises:
        CannotBuild: it is not known, or has another Python than this one: wheels would not fit.
    """
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    shown = ("--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages", "Component: main")
    known = [line.split(" ", 1) for line in _output("apt-get", "indextargets", *shown).splitlines()]
    mirror = next((uri for name, uri in known if name == suite), "")
    if not mirror:
        raise CannotBuild(f"apt has no lists of {suite or 'this system'}: apt-get update")
    ours = f"python3.{sys.version_info.minor}"
    if ours not in _output("apt-cache", "depends", "python3").split():
        raise CannotBuild(f"{suite} does not come with {ours}, for which wheels are downloaded")
    return suite, mirror


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def as_compose_says(
    service: Mapping[str, Any], secrets: Mapping[str, Path]
) -> tuple[list[str], list[str]]:
    """Options of ``podman run`` for a service of docker-compose.yml, and its command.

    Ports are free ones of this machine. What podman cannot know, such as restarts, is left out;
    what is not known here fails.
    """
    left_out = {"image", "build", "restart", "logging"}
    given = {name: value for name, value in service.items() if name not in left_out}
    health, limits = given.pop("healthcheck"), given.pop("deploy")["resources"]["limits"]
    files = [f"{secrets[name]}:/run/secrets/{name}:ro" for name in given.pop("secrets")]
    options = [
        *(f"--env={name}={value}" for name, value in given.pop("environment").items()),
        *(f"--volume={each}" for each in [*given.pop("volumes"), *files]),
        *(f"--publish=127.0.0.1::{each.split(':')[-1]}" for each in given.pop("ports")),
        *(f"--tmpfs={each}" for each in given.pop("tmpfs")),
        *(f"--cap-drop={each}" for each in given.pop("cap_drop")),
        *(f"--security-opt={each}" for each in given.pop("security_opt")),
        f"--read-only={str(given.pop('read_only')).lower()}",
        f"--shm-size={given.pop('shm_size')}",
        f"--pids-limit={given.pop('pids_limit')}",
        f"--memory={limits['memory']}",
        f"--stop-timeout={given.pop('stop_grace_period').removesuffix('s')}",
        f"--health-cmd={_words(health['test'][1:])}",
        f"--health-timeout={health['timeout']}",
        *(f"--ulimit={name}={LIMIT}:{LIMIT}" for name in ("nofile", "nproc")),
    ]
    command = list(given.pop("command"))
    assert not given, f"not translated for podman: {sorted(given)}"
    return options, command


def _words(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
