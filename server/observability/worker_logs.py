"""What workers log, as operators read it: models by their names, one line for each cause."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from braid.server.observability.logs import Seldom

AGAIN_SECONDS = 3600.0
"""Time after which a cause that goes on is logged again."""

MAX_CAUSES = 1024


class WorkerLogs:
    """Filter of the records of workers (``braid.engine.processes.log_lines``)."""

    def __init__(self, names_of: Callable[[str], str]) -> None:
        """``names_of``: models whose file has a digest, in one text; "" if there is none."""
        self._names_of = names_of
        self._causes: OrderedDict[tuple[str, str], Seldom] = OrderedDict()

    def __call__(self, record: logging.LogRecord) -> bool:
        """Name the model of a record; returns True if the record is to be logged."""
        digest = vars(record).pop("digest", None)
        model = "" if digest is None else self._names_of(digest) or str(digest)[:12]
        if model:
            record.model = model
        if record.levelno > logging.WARNING:
            return True
        cause = record.getMessage() + str(vars(record).get("text", "")), model
        seldom = self._causes.setdefault(cause, Seldom(AGAIN_SECONDS))
        self._causes.move_to_end(cause)
        if len(self._causes) > MAX_CAUSES:
            self._causes.popitem(last=False)
        return seldom.passes() is not None
