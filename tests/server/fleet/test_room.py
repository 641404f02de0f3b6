"""What the rest of the server knows of fleets: no word of leases, fences and claims."""

import re

from tests import ROOT

WORDS = re.compile(r"\b(?:lease|fence|claim)(?:s|d|ed|ing|ant)?\b", re.IGNORECASE)

# The database's tables have names and columns of these words, whoever reads them.
TABLES = (ROOT / "server/store/tables/schema.py", ROOT / "server/store/database/migrations")


def test_no_one_else_in_the_server_speaks_of_leases_fences_or_claims() -> None:
    own = (ROOT / "server/fleet", *TABLES)
    speaking = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "server").rglob("*.py")
        if not any(map(path.is_relative_to, own)) and WORDS.search(path.read_text())
    ]

    assert speaking == []
