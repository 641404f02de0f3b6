"""Print the bill of materials of an environment: ``python deploy/sbom.py > sbom.cdx.json``.

CycloneDX 1.5 in JSON, by the standard library alone, so that the image's build needs no further
package: every installed distribution with its version, licence, and what it was installed from.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from typing import Any


def normalised(name: str) -> str:
    """Return a distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(distribution: Distribution) -> str:
    """Return the licence that a distribution states, on one line; "" if none."""
    metadata = distribution.metadata
    fields = [metadata[key] for key in ("License-Expression", "License") if key in metadata]
    stated: str = next(filter(None, fields), "")
    classes = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier") or ()
        if classifier.startswith("License ::") and classifier != "License :: OSI Approved"
    ]
    if not stated or len(stated) > 80 or "\n" in stated:
        stated = " OR ".join(classes) or stated.strip().partition("\n")[0]
    return stated


def component(distribution: Distribution) -> dict[str, Any]:
    """Return a distribution as CycloneDX describes it."""
    name = normalised(distribution.metadata["Name"])
    entry: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": distribution.version,
        "purl": f"pkg:pypi/{name}@{distribution.version}",
        "bom-ref": f"{name}@{distribution.version}",
    }
    if text := licence(distribution):
        entry["licenses"] = [{"license": {"name": text}}]
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    digest = origin.get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest:
        entry["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return entry


def bill(distributions: Iterable[Distribution], subject: str = "braid-serve") -> dict[str, Any]:
    """Return the bill of these distributions; ``subject`` is what they are for."""
    parts = {part["bom-ref"]: part for part in map(component, distributions)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {"type": "application", "name": subject},
        },
        "components": [parts[key] for key in sorted(parts)],
    }


if __name__ == "__main__":
    json.dump(bill(distributions()), sys.stdout, indent=1)
    sys.stdout.write("\n")
