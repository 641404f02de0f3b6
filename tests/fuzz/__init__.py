"""Fuzzers of the importer: ``make fuzz``, or ``python -m tests.fuzz --minutes 10``.

graphs     random valid ONNX graphs from the table, compared with ONNX Runtime
mutations  real files with bytes, fields and JSON changed, through the confined importer
"""
