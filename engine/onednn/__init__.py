"""oneDNN through its C API, and recipes made of its primitives."""
