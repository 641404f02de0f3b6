"""From an artefact to the schedule that a device runs fastest: search, measure, compare, choose.

    artefact + device + batch size + options ──compile.compile──> schedule, with its static graph
                        │  ▲
        device.ask ─────┘  └──── cache: measurements of earlier compilations

    search.py         plans of one precision        kernels.py, stages.py  what they rest on
    choose_plan.py    which one serves              planner.py        a search in its own process
    bench.py          where a device is measured    planning.py       what a search asks
    progress.py       how far it is, in time        retries.py        again, if a worker was killed
    results.py        what compilations leave       result_files.py   in a folder

It knows no server: what it measures is kept by a ``Cache``, and whoever calls is told by a
``Report``. ``braid.library`` and the jobs of ``braid.server`` call it.
"""
