"""Several processes that take connections on the gRPC port, for one that answers them.

    client ──SO_REUSEPORT──> ingress 1..n ──frames, shared memory──> owner ──> workers
                                  └──────── gRPC, Unix socket ─────────┘

The *owner* is the front end of ``server.frontend``: queues, jobs, store, metrics. An *ingress* has
connections, TLS and tokens, and nothing that another one needs. Inference crosses in shared
memory, so that the owner pays for none of gRPC's work with large messages; every other call is
passed on as it came. Off unless ``BRAID_INGRESS`` says how many (docs/decisions/0023).

In an ingress, which inherits its descriptors:

main         entry point: listens until the owner is gone
owner_link   its end of the link: calls, cancellations, memory for requests
inference    RPCs that run models, through the link
forwarding   all other RPCs, through the owner's socket

In the owner:

peer         its end of one link: answers calls
replies      the memory of their replies
process      one ingress process, started again when it ends
processes    all of them, the port they share, the socket they ask
vitals       what they show in the metrics

Frames are those of ``engine.worker.frames``. What happens to the memory of one call:

    ingress                                     owner
    allocates, writes the message
    ──{id, op: infer, offset, size, ...}──>     reads it while the request waits and runs
                                                allocates, writes the reply
    <──{id, offset, size} or {id, error}──      the last word: has read the message for good
    frees the message; copies the reply
    ──{taken: [offset]}──> (with the next frame) frees the reply

Each call ends with exactly one last word, also after ``{op: cancel}``.
"""
