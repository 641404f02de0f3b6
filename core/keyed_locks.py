"""Locks by key: what is done to one key goes one after the other."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class KeyedLocks:
    """One lock for each key in use; a lock that is neither held nor waited for vanishes.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Lock:
        """Lock of ``key``."""
        return self._locks.setdefault(key, asyncio.Lock())

    def __len__(self) -> int:
        """Number of keys in use."""
        return len(self._locks)
