"""Random kills of every kind of process under load, and what must hold all the same.

    python -m tests.chaos --minutes 60 --seed 7 --out FILE.json

Unmodified clients ask two models without pause and compare every answer with ONNX Runtime's,
further models are registered and deleted one after the other, and processes of the server are
killed at random:

    traffic.py         the clients: each call's status, each answer beside the reference
    registrations.py   registers, follows the job to its end, asks the new model, deletes it
    blows.py           finds the processes of each kind, and kills one
    __main__.py        all of it for some minutes; prints what was seen

It fails on a wrong answer, NOT_FOUND for a model that is READY, INTERNAL or UNKNOWN, a job that was
accepted and does not end READY, a process that is left behind, and a traceback in the log.
"""
