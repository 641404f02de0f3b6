"""The models that clients know by name: serving, loading, versions, queries."""
