"""Random lengths and sizes: Braid beside sessions with open shapes.

models ──> Case (files, shapes, inputs) ──> rounds ──> phases (first, load, churn) ──> report
                                              └──> traffic: clients, answers, errors
"""
