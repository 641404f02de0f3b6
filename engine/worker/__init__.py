"""The device worker: one process a device, which owns the device and answers one link.

front end (engine/link)                       worker process
WorkerProcess ── messages.py in frames ─────> process/main.py ──> loop.py ──> requests.py
shared_memory.py ── tensors in slots ───────> requests.py
"""
