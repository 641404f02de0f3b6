"""The object store that shared files lie in, and its failures."""
