"""Which of two schedules of one key serves, if one rests on figures that prove too little.

before ──compared, or of an earlier version──┐
made now ──settled, or compared────> serves <┘ unless something was decided now
"""

from __future__ import annotations

from dataclasses import replace

from braid.core.schedule import Schedule


def better_founded(before: Schedule | None, made: Schedule, made_in_s: float) -> Schedule:
    """Return what was made now, unless nothing was decided and the one before was compared.

    That one stays provisional. ``made_in_s`` is how long it took to make.
    """
    now = made.provenance.provisional
    if now is None:
        return made
    was = None if before is None else before.provenance.provisional
    now = replace(now, tries=now.tries + (0 if was is None else was.tries), made_in_s=made_in_s)
    if before is None:
        return made.found_provisional(now)
    if now.is_compared or (was is not None and not was.is_compared):
        return made.found_provisional(now)
    return before.found_provisional(replace(now, is_compared=True))
