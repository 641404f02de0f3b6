"""The SDK and the command line, against a fake server."""
