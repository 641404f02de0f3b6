"""What the rest of Braid knows of fleets: nothing but how the front end makes one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

ROOM = ROOT / "server/fleet"
COMPOSITION = {ROOT / "server/app/front_end.py", ROOT / "server/app/model_parts.py"}
PRODUCT = (
    "server",
    "compiler",
    "library",
    "engine",
    "scheduler",
    "charts",
    "core",
    "client/braid_client",
)

IMPORT = re.compile(r"^\s*(?:from|import) braid\.server\.fleet(?:\.| import|$)", re.MULTILINE)
WORDS = re.compile(r"\b(?:lease|fence|claim)(?:s|d|ed|ing|ant)?\b", re.IGNORECASE)

# The database's tables have names and columns of these words, whoever reads them.
TABLES = (ROOT / "server/store/tables/schema.py", ROOT / "server/store/database/migrations")


def outside() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if not path.is_relative_to(ROOM):
                yield path


def test_only_the_composition_imports_the_fleet() -> None:
    importers = {path for path in outside() if IMPORT.search(path.read_text())}

    assert importers == COMPOSITION


def test_no_one_else_in_the_server_speaks_of_leases_fences_or_claims() -> None:
    speaking = [
        str(path.relative_to(ROOT))
        for path in outside()
        if path.is_relative_to(ROOT / "server")
        and not any(path.is_relative_to(table) for table in TABLES)
        and WORDS.search(path.read_text())
    ]

    assert speaking == []
