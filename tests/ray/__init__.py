"""Braid on a Ray cluster of three machines: namespaces with a network card each (tests/fleet)."""
