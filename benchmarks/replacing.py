"""Result files that are complete whenever the machine is taken away."""

from __future__ import annotations

from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)
