"""Many registrations at once through several nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from benchmarks.fleet.audit import Audit
from benchmarks.fleet.stand import PLANNER, Findings, Stand, eventually
from braid_client import Client, Job
from tests.fleet.fleet import Fleet
from tests.models.small import adds

BATCH_SIZES = (1, 2, 4)
SECONDS = 600.0
ENDED = ("READY", "UNSCHEDULED", "FAILED", "CANCELLED")


def keys_once(
    stand: Stand, fleet: Fleet, *, models: int = 4, sizes: Sequence[int] = BATCH_SIZES
) -> Findings:
    """Register models through all nodes at once: each key is profiled once."""
    findings = Findings()
    files = [stand.model(branches=2 + number % 3) for number in range(models)]

    def register(number: int) -> Job:
        name, file = files[number]
        with fleet.machines[number % len(fleet.machines)].client() as client:
            return client.register(name, file, planner=PLANNER, batch_sizes=sizes)

    with ThreadPoolExecutor(models) as pool:
        list(pool.map(register, range(models)))
    wanted = models * len(sizes) * types_of(fleet)
    digests = tuple(sha256(file.read_bytes()).hexdigest() for _, file in files)
    names = tuple(name for name, _ in files)
    count = f"select count(*) from schedules where model_digest in {digests}"
    _, seconds = eventually(lambda: fleet.value(count) >= wanted and not unended(fleet), SECONDS)
    findings.figures["s until all are READY"] = round(seconds, 1)
    audit = Audit(fleet)
    mine = f"row->>'model_digest' in {digests} and what <> 'DELETE'"
    written = Counter(write.after["id"] for write in audit.writes("schedules", mine))
    measured = audit.times_written("measurements", "device_key", "signature")
    findings.figures |= {
        "keys": len(written),
        "profilings": sum(written.values()),
        "stages measured": len(measured),
        "stages measured again": sum(measured.values()) - len(measured),
    }
    findings.check(len(written) == wanted, f"{len(written)} keys, not {wanted}")
    findings.check(sum(written.values()) == wanted, f"schedules stored: {dict(written)}")
    states = fleet.rows(
        f"select model, device_keys, state, message from jobs where model in {names}"
    )
    findings.check(all(state == "READY" for *_, state, _ in states), f"jobs: {states}")
    return findings


def types_of(fleet: Fleet) -> int:
    return len({tuple(machine.arguments) for machine in fleet.machines})


def unended(fleet: Fleet) -> int:
    return int(fleet.value(f"select count(*) from jobs where state not in {ENDED}"))


def versions(stand: Stand, fleet: Fleet, *, number: int = 40) -> Findings:
    """Add versions of one name through all nodes at once: each answer has its own version."""
    findings = Findings()
    files = [adds(stand.folder / f"adds-{index}.onnx", index) for index in range(number)]
    clients = [machine.client() for machine in fleet.machines]

    def register(index: int) -> Job:
        client: Client = clients[index % len(clients)]
        return client.register("adds", files[index], planner=PLANNER, timeout_s=SECONDS)

    with ThreadPoolExecutor(5) as pool:  # a node takes six uploads of one caller
        jobs = list(pool.map(register, range(number)))
    stored = [
        version
        for [version] in fleet.rows("select version from models where name = 'adds' order by 1")
    ]
    findings.figures |= {
        "registered": number,
        "versions answered": len({job.version for job in jobs}),
        "versions stored": len(stored),
    }
    findings.check(len({job.version for job in jobs}) == number, f"answers: {jobs}")
    findings.check(stored == [*range(1, number + 1)], f"stored: {stored}")
    for client in clients:
        client.close()
    return findings
