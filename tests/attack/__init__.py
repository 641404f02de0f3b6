"""Attacks with expectations as data; ``make attack`` runs them, then campaigns/noise for minutes.

inside         what hostile code would try in a confined importer
sample_files   hostile files of samples, which the front end reads
messages       hostile messages to every method of gRPC, to REST and the console
target         the server that they are sent to, with canaries beside it

Hostile models are in ``tests/models/bad_onnx.py`` and ``bad_pt2.py``, hostile archives in
``tests/engine/importer/test_external_data.py``.
"""
