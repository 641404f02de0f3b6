"""Braid as a library: ``braid.compile`` and the networks that it returns, without a server.

model file, torch module ──compiling──> importer, braid.compiler ──> schedules
                                            └── their processes have ended by now
Network(x) ──> device thread of this process ──> the plans that a server would run
"""
