"""Networks of ``braid demo``: written in plain torch, seeded weights, no downloads.

    network.NETWORKS ──> Network.build(seed) ──> onnx_file.write_onnx ──> FILE.onnx

The only modules of the server that load torch: ``braid demo`` runs them in a process of its own,
``python -P -m braid.server.cli.local.demo_networks squeezenet --out DIR``.
"""
