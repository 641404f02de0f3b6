"""The networks, the large ones marked slow."""

from __future__ import annotations

import pytest

from benchmarks.networks import NETWORKS

SLOW = {"randwire", "nasnet_large", "bert_base", "t5_encoder"}

EVERY_NETWORK = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in NETWORKS
]
