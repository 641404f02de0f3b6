"""For all tests: what the process inherits must not decide whether they pass."""

from __future__ import annotations

import signal

# A shell that starts a job in the background makes it ignore SIGINT, and its children with it;
# some tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
