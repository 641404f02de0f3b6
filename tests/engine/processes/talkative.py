"""A child that logs and prints in all ways, and ends."""

import logging
import os
import warnings

from braid.engine.processes.log_lines import log_as_lines

log_as_lines()
log = logging.getLogger("braid.executor")
log.info("too small a matter")
for _ in range(3):
    log.warning("runs otherwise: Check failed:\nat the end", extra={"digest": "ab" * 32})
try:
    raise ValueError("why")
except ValueError:
    log.exception("call %s failed", 7)
warnings.warn("old", stacklevel=1)
os.write(1, b"of a library\n\n" + b"x" * 70_000)
os.write(2, b'{"logger": "root", "level": "x", "message": 1, "facts": {}, "trace": ""}')
