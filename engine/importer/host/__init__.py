"""The front end's side of an import. Loads no torch."""
