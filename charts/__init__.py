"""Pictures of schedules: timelines and differences. Knows ``core`` only, draws no server.

Schedule + OpGraph ──timeline.py──> Timeline ──┬─ svg.py       a picture for people
                                               └─ perfetto.py  a trace for ui.perfetto.dev
two Schedules ──difference.py──> Difference ──svg.py, or lines of text
"""
