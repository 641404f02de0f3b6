"""Version of braid-client and of braid-serve: both are released together."""

__version__ = "0.1.0"
