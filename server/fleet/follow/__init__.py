"""What a node does with what other nodes changed: it looks, loads, swaps, and times."""
