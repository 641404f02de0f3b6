"""Passes that fold an operator into the weights or arguments of its neighbour."""
