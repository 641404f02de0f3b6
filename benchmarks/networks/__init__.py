"""Networks to schedule: written in plain torch, seeded weights, no downloads.

registry.NETWORKS ──> Network.build(seed) ──> export.export_onnx ──> FILE.onnx

SqueezeNet, Inception V3, the layers and the weights are those of ``braid demo``.
"""

from benchmarks.networks.registry import NETWORKS

__all__ = ["NETWORKS"]
