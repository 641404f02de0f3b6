"""Every fault that was found stays mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.regressions.scripts import run, script_names


@pytest.mark.slow
@pytest.mark.parametrize("name", script_names())
def test_fault_is_mended(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)
