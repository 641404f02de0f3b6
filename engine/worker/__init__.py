"""The device worker: one process a device, and the front end's link to it.

front end                                      worker process
link.py ── frames.py over a socket pair ──────> main.py ──> models.py ──> executor, timing
arena.py ── tensors in shared memory ─────────> (same bytes, layout.py)
"""
