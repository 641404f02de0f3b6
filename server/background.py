"""Tasks that nobody waits for: what ends one of them must not be lost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from core.errors import BraidError

log = logging.getLogger("braid.background")


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log what a task died of; to be added to it as a done callback."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if isinstance(error, BraidError):
        log.error("%s ended: %s", task.get_name(), error)
    else:
        log.error("%s died", task.get_name(), exc_info=error)
