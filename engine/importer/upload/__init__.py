"""What was uploaded: its formats, its bounds, its batch axis."""
