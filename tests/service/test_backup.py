import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from tests.models.small import small_cnn
from tests.service.server_process import ServerProcess, plans_by_size


def documented_backup(store: Path, backup: Path) -> None:
    """Run the commands of docs/operations.md as they stand there."""
    section = (ROOT / "docs/operations.md").read_text().split("## Back up and restore")[1]
    commands = re.findall(r"^    (\S.*)$", section.split("\n## ")[0], re.MULTILINE)
    wanted = [line for line in commands if line.startswith(("python3 -c", "cp -a"))]
    assert len(wanted) == 2, commands
    environment = {
        "BRAID_STORE": str(store),
        "BACKUP": str(backup),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    for command in sorted(wanted, reverse=True):  # the database first, as the text says
        subprocess.run(["sh", "-ec", command], env=environment, check=True, timeout=120)


@pytest.mark.slow
def test_after_backup_wipe_and_restore_models_serve_with_nothing_measured_again(
    tmp_path: Path,
) -> None:
    row = {"x": np.ones((1, 3, 16, 16), np.float32)}
    with ServerProcess(tmp_path / "store").start() as server:
        with server.client() as client:
            client.register("cnn", small_cnn(tmp_path / "cnn.onnx"), batch_sizes=[1, 4], wait=True)
            before = client.infer("cnn", row)
            plans = plans_by_size(client, "cnn", (1, 4))
            jobs = [job.id for job in client.jobs()]
        assert server.metric("braid_stage_measurements_total") > 0
        (tmp_path / "backup").mkdir()
        documented_backup(server.store, tmp_path / "backup")
        server.kill_everything()
        shutil.rmtree(server.store)
        shutil.copytree(tmp_path / "backup", server.store)

        server.start()
        with server.client() as client:
            after = client.infer("cnn", row)
            assert plans_by_size(client, "cnn", (1, 4)) == plans
            assert [job.id for job in client.jobs()] == jobs, "no new job"
        assert before.plan_id in plans[before.batch_size]
        assert after.plan_id in plans[after.batch_size]
        np.testing.assert_allclose(after.outputs["y"], before.outputs["y"], rtol=1e-5, atol=1e-6)
        assert server.metric("braid_stage_measurements_total") == 0
        assert server.metric("braid_schedule_cache_lookups_total", result="hit") == 2
