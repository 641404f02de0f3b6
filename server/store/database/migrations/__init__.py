"""Steps from one version of the tables to the next, for alembic; ``v0001`` is schema 3.

A step only adds: tables, columns with a default of the server, indexes. Servers of the version
before go on with the database while others already run the next one. A change that they cannot
live with also raises ``schema_version``, and they refuse the database.

A step never imports today's tables: it stays what it was.
"""
