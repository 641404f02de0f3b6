from __future__ import annotations

from braid.engine.pt2.operator_docs import as_markdown
from tests import ROOT

DOCUMENT = ROOT / "docs/pt2-operators.md"


def test_document_is_current() -> None:
    assert DOCUMENT.read_text() == as_markdown(), (
        "run: python -m braid.engine.pt2.operator_docs > docs/..."
    )
