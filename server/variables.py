"""Variables ``BRAID_*`` of the environment that nothing reads, each with the one that was meant.

Commands that talk to a server look here too, so settings are loaded only where a name is in doubt.
"""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches

_OF_CLIENTS = ("ADDRESS", "TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY")
_OF_BENCHMARKS = ("COMMIT", "PAPER_GRAPHS")

_OF_KUBERNETES = re.compile(r"BRAID_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")
"""Variables that Kubernetes sets in pods for services whose names begin with ``braid``."""


def unknown_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables ``BRAID_*`` that nothing reads, each with the most similar one, or ""."""
    names = ["BRAID_" + name for name in (*_OF_CLIENTS, *_OF_BENCHMARKS)]
    unknown = [
        name
        for name in sorted(environment)
        if name.startswith("BRAID_") and name not in names and not _OF_KUBERNETES.fullmatch(name)
    ]
    if not unknown:
        return {}
    from braid.server.settings import PREFIX, Settings  # take a while to load

    names += [PREFIX + name.upper() for name in Settings.model_fields]
    return {
        name: next(iter(get_close_matches(name, names, 1, 0.8)), "")
        for name in unknown
        if name not in names
    }
