"""Opening the files of a store: its folder, or a place that other servers share.

Only a shared place loads ``obstore``, which the extra ``braid-serve[fleet]`` installs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from braid.core.errors import StartupError
from braid.server.store.shared_files.interface import FilesObserver, SharedFiles, StoreFolderFiles
from braid.server.store.store import Store


def open_files(
    url: str,
    store: Store,
    observer: Callable[[], FilesObserver],
    serving: Callable[[], Collection[str]],
    *,
    credentials: Path | None = None,
    cache_bytes: int = 0,
    grace_s: float = 3600.0,
    may_sweep: Callable[[], Awaitable[bool]] | None = None,
) -> SharedFiles:
    """Return the files of a store; a shared place is not asked before ``start``.

    Args:
        url: of the shared place: a folder, s3://, gs:// or az://. Empty: the store's folder.
        store: of this server.
        observer: makes what is told what happens to shared files.
        serving: returns the digests of the models that serve: their files stay in the cache.
        credentials: file with the keys of the shared place; None: the environment has them.
        cache_bytes: most bytes of the cache; 0: no limit.
        grace_s: what no model needs stays in the shared place for so many seconds.
        may_sweep: returns whether this is the server that sweeps now; None: always.

    Raises:
        StartupError: there is no such kind of place, or ``obstore`` is missing.
    """
    if not url:
        return StoreFolderFiles()
    try:
        from braid.server.store.shared_files.cache import FileCache
        from braid.server.store.shared_files.object_files import ObjectFiles
        from braid.server.store.shared_files.object_store.place import open_place
        from braid.server.store.shared_files.sweep import always
    except ImportError as error:
        raise StartupError(
            f"shared files need obstore ({error}): pip install 'braid-serve[fleet]'"
        ) from error
    place, observed = open_place(url, credentials), observer()
    cache = FileCache(store.folder, cache_bytes, serving, observed)
    return ObjectFiles(place, store, cache, observed, grace_s, may_sweep or always)
