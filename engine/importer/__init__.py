"""From an untrusted upload to a checked artefact, in a process of its own.

    server ──launch.import_model──> python -m braid.engine.importer.sandbox ──JSON lines──> server
                                      parse ─> lower ─> passes ─> batch ─> verify ─> artefact

``launch``, ``limits``, ``messages`` and the readers of reports load neither torch nor onnx, so
that the front end can use them.
"""
