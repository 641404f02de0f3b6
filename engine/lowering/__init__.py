"""What the lowering of both model formats shares."""
