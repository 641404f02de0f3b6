from __future__ import annotations

from pathlib import Path

from engine.pt2.table import as_markdown

DOCUMENT = Path(__file__).parents[2] / "docs/pt2-operators.md"


def test_document_is_current() -> None:
    assert DOCUMENT.read_text() == as_markdown(), "run: python -m engine.pt2.table > docs/..."
