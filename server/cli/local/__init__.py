"""Subcommands that need no running server."""
