"""The unit of systemd: by systemd's own check, and by what the server reads and keeps."""

import re
import subprocess
from pathlib import Path

from braid.server.settings import Settings
from tests.deploy.places import DEPLOY, program, unknown_settings

UNIT = (DEPLOY / "systemd/braid.service").read_text()


def test_systemd_accepts_it(tmp_path: Path) -> None:
    here = tmp_path / "braid.service"
    here.write_text(UNIT.replace("/opt/braid/bin/braid", program("true", "coreutils")))

    ran = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", str(here)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    about_it = [line for line in ran.stderr.splitlines() if "braid.service" in line]
    assert (ran.returncode, about_it) == (0, [])


def test_the_server_reads_every_variable_that_is_set() -> None:
    names = re.findall(r"(BRAID_\w+)=", "".join(re.findall(r"^Environment=.*", UNIT, re.MULTILINE)))

    assert "BRAID_STORE" in names
    assert unknown_settings(names) == set()


def test_it_waits_until_the_server_has_drained() -> None:
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)

    assert int(seconds) > Settings.model_fields["drain_seconds"].default
