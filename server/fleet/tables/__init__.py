"""Tables of what servers on one database share: claims, leases, nodes and stored objects."""
