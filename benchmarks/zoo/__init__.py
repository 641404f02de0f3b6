"""A zoo of networks that nobody wrote for Braid, through import, engines and servers.

styles, architectures ──export──> files ──┬──> import: who refuses which, and why
                                          ├──> engines: plans, runtimes, a process each, in turns
                                          └──> served: Braid beside thirty lines around runtimes
                                                  └──> report: ratios by family, the worst, counts
"""
