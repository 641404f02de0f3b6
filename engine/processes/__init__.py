"""Child processes of the front end: their environment, their streams, their end. Loads no torch."""
