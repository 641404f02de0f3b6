"""Fuzzers of the importer and of HTTP/2: ``make fuzz``.

graphs     random valid ONNX graphs from the table (makers), compared with ONNX Runtime
mutations  real files with bytes, fields and JSON changed, through the confined importer (forked)
http2      damaged bytes of gRPC's own clients
"""
