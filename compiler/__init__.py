"""From an artefact to the schedule that a device runs fastest: search, measure, compare, choose.

    artefact + device + batch size + options ──compile.compile──> schedule, with its static graph
                        │  ▲
        device.ask ─────┘  └──── cache: measurements of earlier compilations

    search.py         plans of one precision        kernels.py, stages.py  what they rest on
    choose_plan.py    which one serves              planning.py       one search, and what it asks
    bench.py          where a device is measured    bench_search.py   on a CPU the bench searches
    progress.py       how far it is, in time        process.py        ... in its process
    retries.py        again, if a worker was killed planner.py        on a GPU a process of its own
    results.py        what compilations leave       result_files.py   in a folder

It knows no server: what it measures is kept by a ``Cache``, and whoever calls is told by a
``Report``. ``braid.library`` and the jobs of ``braid.server`` call it.
"""
