"""Opening the place that servers share files in, with ``obstore`` of the extra ``[fleet]``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from braid.core.errors import StartupError
from braid.server.fleet.metrics import FileMetrics
from braid.server.fleet.store import FleetStore
from braid.server.store.shared_files import Files


def open_files(
    url: str,
    store: FleetStore,
    metrics: FileMetrics,
    serving: Callable[[], Collection[str]],
    *,
    credentials: Path | None = None,
    cache_bytes: int = 0,
    grace_s: float = 3600.0,
) -> Files:
    """Return the files of a store; the shared place is not asked before ``start``.

    Args:
        url: a folder, s3://, gs:// or az://.
        serving: returns the digests of the models that serve: their files stay in the cache.
        credentials: file with the keys of the shared place; None: the environment has them.
        cache_bytes: 0: no limit.

    Raises:
        StartupError: there is no such kind of place, or ``obstore`` is missing.
    """
    try:
        from braid.server.fleet.files.cache import FileCache
        from braid.server.fleet.files.object_files import ObjectFiles
        from braid.server.fleet.files.place import open_place
    except ImportError as error:
        raise StartupError(
            f"shared files need obstore ({error}): pip install 'braid-serve[fleet]'"
        ) from error
    place = open_place(url, credentials)
    cache = FileCache(store.folder, cache_bytes, serving, metrics)
    return ObjectFiles(place, store, cache, metrics, grace_s)
