"""Networks in the styles in which people write them in plain torch."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.zoo.entry import Entry
from benchmarks.zoo.styles.images import IMAGES
from benchmarks.zoo.styles.sequences import SEQUENCES
from benchmarks.zoo.styles.several_inputs import SEVERAL_INPUTS

STYLES: Mapping[str, Entry] = {**IMAGES, **SEQUENCES, **SEVERAL_INPUTS}
