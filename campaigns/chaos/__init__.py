"""Random blows to a server under load, and what must hold all the same.

    make chaos MINUTES=60 SEED=7
    python -m tests.fleet.alone python -m campaigns chaos --minutes 60 --seed 7 --out FILE.json

Unmodified clients ask several models and compare every answer with ONNX Runtime's, further models
are registered, kept or deleted one after the other, and the server is struck at random:

    ../traffic.py      the clients: each call's status, each answer beside the reference
    ../registrations.py    registers, follows the job to its end, asks the new model
    surroundings.py    disk, limits, failing system calls and a clock that jumps (faults.c)
    blows.py           processes killed, stopped and starved; faults of the surroundings
    checks.py          what must hold after a blow, and in a calm
    campaign.py        all of it together, in rounds; results and their sums

``broken`` in the result must be empty: wrong answers, a status that is not documented, calls that
end after their deadline, READY models that do not answer, jobs that neither end nor say why, damage
to the database, rows without files and files without rows, what is left over (processes, temporary
files, shared memory, descriptors, series of metrics), tracebacks in the log.

In namespaces of its own (``tests.fleet.alone``) it has a disk that it can fill, and nothing of it
outlives it. Where those cannot be had, ``left out`` says what was not done.
"""
