"""The layers of networks."""
