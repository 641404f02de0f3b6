"""Rights of callers, and safety of their connections.

tokens        bearer tokens, kept as hashes, each with a role, and the role that each call needs
gate          the interceptor that lets a call in or refuses it, before its body is read
certificates  TLS, with certificates that may be replaced while the server runs
addresses     addresses without authentication, networks of callers, names of the HTTP port
"""
