"""Peers as processes: what they say of themselves, their environments, their process trees."""
