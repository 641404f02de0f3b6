"""Plans of networks, kept from one run of ``benchmarks.engine`` to the next as JSON.

Finding plans takes a minute a network; timings are done apart from it, in short pieces.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.planned import Found, Scheduling

_FILE = "found.json"


def keep(found: Found, folder: Path) -> None:
    document = {**asdict(found), "plans": {name: path.name for name, path in found.plans.items()}}
    (folder / _FILE).write_text(json.dumps(document, indent=1))


def kept(folder: Path) -> Found | None:
    if not (folder / _FILE).exists():
        return None
    document = json.loads((folder / _FILE).read_text())
    document["plans"] = {name: folder / file for name, file in document["plans"].items()}
    document["also"] = {name: tuple(others) for name, others in document["also"].items()}
    return Found(**{**document, "scheduling": Scheduling(**document["scheduling"])})
