"""One inference request: checks, slot rows, replicas, memory, batching.

requests        a request as it came, checked, and its result
call_memory     how much memory calls may hold, and who waits for it
routing         the replicas of a version, and the one that takes a request
replica         a version on one device, with its executables
batching        which requests run together, and when
slot_rows       rows of requests into a slot of shared memory and out of it
shared_regions  shared memory that callers register
"""
