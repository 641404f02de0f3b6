"""Networks to schedule: written in plain torch, seeded weights, no downloads.

registry.NETWORKS ──> Network.build(seed) ──> export.export_onnx ──> FILE.onnx
"""

from benchmarks.networks.registry import NETWORKS, Network

__all__ = ["NETWORKS", "Network"]
