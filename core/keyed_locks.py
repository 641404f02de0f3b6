"""Locks by key: what is done to one key goes one after the other."""

import asyncio
from weakref import WeakValueDictionary


class KeyedLocks:
    """One lock for each key in use; a lock that is neither held nor waited for vanishes.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def __len__(self) -> int:
        return len(self._locks)
