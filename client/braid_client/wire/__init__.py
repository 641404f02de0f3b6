"""Generated code of the wire format (``make protos``)."""
