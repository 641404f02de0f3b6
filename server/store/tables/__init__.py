"""The tables of the store. Every function runs inside the caller's transaction."""
