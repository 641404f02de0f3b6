"""The wire format: ``.proto`` files and the code generated from them (``make protos``)."""
