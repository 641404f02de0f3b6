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


def licence(found: Distribution) -> str:
    """Return the licence that a distribution states, on one line; "" if none."""
    metadata = found.metadata
    fields = [metadata[key] for key in ("License-Expression", "License") if key in metadata]
    stated: str = next(filter(None, fields), "")
    classes = [
        each.rpartition(" :: ")[2]
        for each in metadata.get_all("Classifier") or ()
        if each.startswith("License ::") and each != "License :: OSI Approved"
    ]
    if not stated or len(stated) > 80 or "\n" in stated:
        stated = " OR ".join(classes) or stated.strip().partition("\n")[0]
    return stated


def component(found: Distribution) -> dict[str, Any]:
    """Return a distribution as CycloneDX describes it."""
    name = normalised(found.metadata["Name"])
    made: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": found.version,
        "purl": f"pkg:pypi/{name}@{found.version}",
        "bom-ref": f"{name}@{found.version}",
    }
    if text := licence(found):
        made["licenses"] = [{"license": {"name": text}}]
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    digest = origin.get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest:
        made["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return made


def bill(found: Iterable[Distribution], subject: str = "braid-serve") -> dict[str, Any]:
    """Return the bill of these distributions; ``subject`` is what they are for."""
    parts = {each["bom-ref"]: each for each in map(component, found)}
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
