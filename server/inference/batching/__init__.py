"""Batching: which waiting requests run together, when, and at which batch size.

    batcher      the queues of one device, and the decision what it runs next
    admission    which requests may wait: limits, expected waits
    queues       what waits for one model, in order of priority and arrival
    batch_sizes  what each batch size takes, and which one ends the waiting soonest
    execution    one batch on a device, and what becomes of its requests

Time and execution come in as Protocols (``batcher.Clock``, ``execution.Execution``).
"""
