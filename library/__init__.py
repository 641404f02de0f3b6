"""Braid as a library: ``braid.compile`` and the networks that it returns, without a server.

model file, torch module ──compiling──> registration job (server/jobs) ──> schedules
                                            └── its processes have ended by now
Network(x) ──> device thread of this process ──> the plans that a server would run
"""
