"""Subcommands that call a server."""
