"""Series of the metrics by concern; ``braid.server.observability.metrics`` puts them together.

requests   requests, batches, queues, memory of calls: by model, version and device
plans      schedules: by model, version, device and batch size
jobs       registrations, measurements and workers
"""
