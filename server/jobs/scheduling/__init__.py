"""One batch size on one device: measured, planned, compared, chosen."""
