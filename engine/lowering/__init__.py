"""Lowering steps that both model formats share."""
