"""The database of a store: SQLite in its folder, or a PostgreSQL that several servers share."""
