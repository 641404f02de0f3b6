"""Executors: they run stream plans and know nothing of planners.

OpGraph + constants ──bind──> Program (program.py)
Program + StreamPlan ──> LanePlan (lanes.py) ──> CpuExecutor.run (cpu.py)
"""
