"""Whether Braid imports a file: in parts that it schedules, whole by a runtime, or not at all."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from braid.core.errors import BraidError
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.report import read_report
from braid.engine.importer.host.request import ImportLimits

PARTS, WHOLE, REFUSED = "parts", "whole", "refused"


def imported(file: Path, artefact: Path) -> str:
    """Import a file, unless that was done; returns ``parts``, ``whole: why`` or ``refused: why``.

    What the import warns of follows.
    """
    if not artefact.exists():
        artefact.parent.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(import_model(file, artefact, ImportLimits(), lambda fraction, step: None))
        except BraidError as error:
            shutil.rmtree(artefact, ignore_errors=True)
            return f"{REFUSED}: {error}"
    report = read_report(artefact)
    whole = [warning for warning in report.warnings if "served whole by" in warning]
    batch = "" if report.batch is not None else " (unbatched)"
    how = f"{WHOLE}: {whole[0]}" if whole else f"{PARTS}{batch}"
    return how + "".join(f"; {warning}" for warning in report.warnings if warning not in whole)


def verdict(outcome: str) -> str:
    """Return the first word of what ``imported`` returned."""
    return outcome.partition(":")[0].partition(" ")[0].partition(";")[0]
