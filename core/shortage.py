"""Recognition of a system that has no descriptors, processes or memory left for now.

A file that cannot be opened for want of descriptors is not damaged: it must not be made anew.
"""

import errno

from braid.core.errors import InvalidArtefact, SystemShortage

_BY_ERRNO = {
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
}


def shortage(error: BaseException | None) -> SystemShortage | None:
    """Return what the system lacked if ``error`` came of that, else None."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, SystemShortage):
            return error
        if isinstance(error, OSError) and (what := _BY_ERRNO.get(error.errno or 0)):
            return SystemShortage(what)
        error = error.__cause__ or error.__context__
    return None


def unreadable(name: str, error: OSError) -> InvalidArtefact | SystemShortage:
    """Return the error for a file of an artefact that cannot be read; its message says ``name``."""
    return shortage(error) or InvalidArtefact(f"{name} cannot be read: {error.strerror}")
