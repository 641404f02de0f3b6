"""Shows that the rows of a batch do not influence each other."""
