"""The part in C: running a plan's primitives without the interpreter (lanes.c), and convolutions.

Built when Braid is installed, if there is a C compiler; without it plans run from Python, and a
warning says so.
"""
