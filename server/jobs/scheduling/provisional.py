"""Which of two schedules of one key serves, if one rests on figures that prove too little.

before ──compared, or of an earlier version──┐
made now ──settled, or compared────> serves <┘ unless something was decided now
"""

from __future__ import annotations

from dataclasses import replace

from braid.core.schedule import Schedule


def better_founded(before: Schedule | None, made: Schedule) -> Schedule:
    """Return what was made now, unless nothing was decided and the one before was compared.

    That one stays provisional.
    """
    now = made.provenance.provisional
    if now is None or before is None:
        return made
    was = before.provenance.provisional
    now = replace(now, tries=now.tries + (0 if was is None else was.tries))
    if now.is_compared or (was is not None and not was.is_compared):
        return made.found_provisional(now)
    return before.found_provisional(replace(now, is_compared=True))
