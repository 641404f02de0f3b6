"""The confined process that imports one upload."""
