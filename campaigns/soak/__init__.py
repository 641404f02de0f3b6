"""A server under mixed load for long: its memory is flat, its latencies steady.

    make soak MINUTES=60
    python -m campaigns soak --minutes 60 --out FILE.json

Several models and shapes are asked, also shapes that are new each time, and models are registered
and deleted all the while. Every few seconds the private memory, descriptors and threads of each
process are looked at, and latencies every so often. After a warm-up their slopes are told with an
interval (slopes.py); a slope that is above the limit beyond doubt is a leak.

The same is done first, for a shorter time, to a server that leaks on purpose (leaking.py): a run
that does not catch it proves nothing, and fails.
"""
