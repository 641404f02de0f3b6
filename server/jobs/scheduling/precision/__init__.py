"""Which precision serves, and what it is measured on."""
