"""Campaigns against a Ray cluster of three machines, and the price of its ingress.

python -m benchmarks.ray kill-3 kill-2 kill-head roll ingress --json FILE

load.py        clients that ask without pause, and what became of each call
campaigns.py   machines that are killed in turn, nodes that are replaced
ingress.py     the ingress beside the replica's own port, in turns
__main__.py    runs them, prints tables, writes JSON
"""
