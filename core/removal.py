"""Removal of folders that is tried again later: with no descriptor left, none can be listed.

A process that ends meanwhile leaves the folder to whoever sweeps at its next start.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

_log = logging.getLogger(__name__)

FIRST_S, LAST_S = 1.0, 64.0


def remove_folder(folder: Path, remove: Callable[[], None] | None = None) -> None:
    """Remove a folder, if it exists, now or, where that fails, from a thread later.

    Nobody may use its name again. ``remove`` stands for ``shutil.rmtree`` and passes over errors.
    """
    _try(folder, remove or partial(shutil.rmtree, folder, ignore_errors=True), FIRST_S)


def remove_entry(path: Path) -> None:
    """Remove a file, a link, or a folder as ``remove_folder`` does; it may be missing."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _try(folder: Path, remove: Callable[[], None], pause_s: float) -> None:
    remove()
    if not os.path.lexists(folder):
        return
    if pause_s > LAST_S:
        _log.warning("%s cannot be removed; the next start will try again", folder)
        return
    again = threading.Timer(pause_s, _try, (folder, remove, 2 * pause_s))
    again.daemon = True
    again.start()
