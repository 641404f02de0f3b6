"""Registration jobs: from an upload to a schedule for every batch size.

runner.py           which job runs when; persistence, progress, watching, cancelling, resuming
registration.py     what a job does: one function, read top to bottom
imports.py          which imports run at the same time, and with how much each
ports.py            what it needs of the device, the planner, the importer, the catalogue
planner_process.py  the planner as a child process, and the driver of that child
"""
