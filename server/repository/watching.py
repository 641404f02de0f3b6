"""Changes of a folder, as the operating system reports them.

Links, network disks and too few inotify watches hide changes: who is told here looks by itself too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("braid.repository")

QUIET_MS = 50
LONGEST_MS = 400
"""Changes are told once none has come for ``QUIET_MS``, and after ``LONGEST_MS`` in any case."""

AGAIN_S = 30.0


async def watch(folder: Path, tell: Callable[[], None]) -> None:
    """Call ``tell`` after changes anywhere below a folder, until cancelled."""
    # Imported here: servers without a repository need it not.
    from watchfiles import awatch

    is_logged = False
    while True:
        try:
            async for _ in awatch(
                folder,
                watch_filter=None,
                debounce=LONGEST_MS,
                step=QUIET_MS,
                ignore_permission_denied=True,
            ):
                tell()
        except (OSError, RuntimeError) as error:  # watchfiles' own errors are RuntimeErrors
            if not is_logged:
                facts = {"folder": str(folder), "reason": str(error)}
                log.warning("changes are not reported, but looked for", extra=facts)
            is_logged = True
        await asyncio.sleep(AGAIN_S)
