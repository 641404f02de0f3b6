"""What the owner of a model is told of a compilation that ended, in words."""

import logging

from braid.core.errors import BraidError
from braid.core.schedule import Schedule

log = logging.getLogger("braid.jobs")


def reason(error: Exception, model: str, batch_size: int) -> str:
    """Text why a batch size has no schedule; logs internal errors."""
    if isinstance(error, BraidError):
        return str(error)
    facts = {"model": model, "size": batch_size}
    log.error("scheduling failed", exc_info=error, extra=facts)
    return "internal error; the server's log has the details"


def remarks(schedule: Schedule) -> list[str]:
    """Texts that say why a plan does not serve."""
    provenance = schedule.provenance
    if not provenance.promoted:
        return [provenance.reason]
    wrong = (contender for contender in provenance.candidates if contender.erred)
    return [f"{contender.name} is refused: {contender.remark}" for contender in wrong]
