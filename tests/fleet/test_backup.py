"""Backup of a fleet by the commands of docs/scale-out.md, loss of everything, restore."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import obstore
import pytest

from tests import ROOT
from tests.fleet.fleet import Fleet
from tests.fleet.postgres import PASSWORD, Postgres
from tests.fleet.s3 import S3
from tests.models.small import small_cnn
from tests.service.server_process import plans_by_size

pytestmark = pytest.mark.fleet

ROW = {"x": np.ones((1, 3, 16, 16), np.float32)}


def documented(program: str) -> str:
    """The one command of the page that begins with a program's name."""
    section = (ROOT / "docs/scale-out.md").read_text().split("## Back up and restore")[1]
    [command] = re.findall(rf"^    ({program} .*)$", section.split("\n## ")[0], re.MULTILINE)
    return str(command)


def run(program: str, url: str, backup: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: apt-get install postgresql-client")
    environment = {
        **os.environ,
        "DATABASE": re.sub(r"//(\w+):[^@]*@", r"//\1@", url.replace("+psycopg", "")),
        "PGPASSWORD": PASSWORD,
        "BACKUP": str(backup),
    }
    subprocess.run(["sh", "-ec", documented(program)], env=environment, check=True, timeout=120)


def objects(s3: S3, prefix: str) -> dict[str, bytes]:
    store = s3.store()
    return {
        path: bytes(obstore.get(store, path).bytes())
        for path in s3.objects()
        if path.startswith(f"{prefix}/")
    }


def test_after_the_loss_of_everything_a_new_machine_serves_from_the_backup(
    machines: Path, postgres_server: Postgres, s3_server: S3, tmp_path: Path
) -> None:
    with Fleet(machines / "backup", postgres_server, s3_server, threads=(1,), first=90) as fleet:
        (first,) = fleet.start().machines
        with first.client() as client:
            client.register("cnn", small_cnn(tmp_path / "cnn.onnx"), batch_sizes=[1, 2], wait=True)
            before = client.infer("cnn", ROW)
            plans = plans_by_size(client, "cnn", (1, 2))
            jobs = [job.id for job in client.jobs()]
        run("pg_dump", fleet.url, tmp_path)
        files = objects(s3_server, fleet.database)
        assert files

        first.power_off()
        postgres_server.execute(f'drop database "{fleet.database}" with (force)')
        obstore.delete(s3_server.store(), list(files))
        fleet.url = postgres_server.create(fleet.database)
        run("pg_restore", fleet.url, tmp_path)
        for path, content in files.items():
            obstore.put(s3_server.store(), path, content)

        second = fleet.add(1).start()  # with an empty disk
        with second.client() as client:
            after = client.infer("cnn", ROW)
            assert plans_by_size(client, "cnn", (1, 2)) == plans
            assert [job.id for job in client.jobs()] == jobs, "no new job"
            assert [node.alive for node in client.nodes() if node.answers] == [True]
        assert before.plan_id in plans[before.batch_size]
        assert after.plan_id in plans[after.batch_size]
        np.testing.assert_allclose(after.outputs["y"], before.outputs["y"], rtol=1e-5, atol=1e-6)
        assert second.metric("braid_stage_measurements_total") == 0
