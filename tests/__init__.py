"""Tests of Braid: a folder for each package, with the packages' names.

core  scheduler  charts  client  benchmarks  library  campaigns    tests of these packages
engine  server                                 without a server process; some start a worker
service                                        start ``braid serve`` and speak to it
fleet                                          several servers, in namespaces of their own
deploy  docs                                   tests of those folders' files
models                                         makers of model files, for all tests
conformance                                    a program: ``python -m tests.conformance``
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""Top folder of the checkout."""
