"""Registration jobs: from an upload to a schedule for every batch size.

runner.py          which job runs when; persistence, progress, watching, cancelling, resuming
registration.py    what a job does: one function, read top to bottom; braid.compiler makes schedules
services.py        the parts of the server that jobs work with
interfaces.py      what jobs need of devices, planner, importer and serving models, as Protocols
imports.py         which imports run at the same time, and with how much memory each
"""
