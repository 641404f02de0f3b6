"""Batching: which waiting requests run together, when, and at which batch size.

    tickets      one request on its way, and the rows of it that ride in one batch
    queues       what waits for one model, in order of priority and arrival
    latencies    what each batch size of a model takes, as scheduled and as seen
    completion   which batch size ends the waiting soonest, and whether to wait for more rows
    batcher      the queues of one device, and the decision what it runs next
    execution    one batch on a device: slot, rows in, run, rows out

Time and execution come in as Protocols (``batcher.Clock``, ``batcher.Execution``).
"""
