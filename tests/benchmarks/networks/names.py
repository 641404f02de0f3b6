"""The networks, the large ones marked."""

import pytest

from benchmarks.networks import NETWORKS

SLOW = ("randwire", "nasnet_large", "bert_base", "t5_encoder")
IN_CI = ("inception_v3", "resnet50", "nasnet_mobile", "randwire_small")

_MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), **dict.fromkeys(IN_CI, pytest.mark.ci)}

EVERY_NETWORK = [pytest.param(name, marks=_MARKS.get(name, ())) for name in NETWORKS]
