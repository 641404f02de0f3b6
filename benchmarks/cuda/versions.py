"""What a machine with a GPU is and has: ``python -m benchmarks.cuda.versions``.

Prints JSON, or one line where torch sees no GPU.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.environment import REPOSITORY, describe

PACKAGES = REPOSITORY / "tests/gpu-packages.txt"


def missing(listed: Path = PACKAGES) -> list[str]:
    """Packages that the service and its tests need and that are not here."""
    lacking = []
    for name in re.findall(r"^([\w-]+)==", listed.read_text(), re.MULTILINE):
        try:
            version(name)
        except PackageNotFoundError:
            lacking.append(name)
    return lacking


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("no NVIDIA GPU (or no torch that sees one) here")
    from braid.engine.cuda.identity import read_identity

    identity = read_identity()
    facts = {
        **describe("torch", "triton", "onnx", "onnxruntime", "numpy", "pytest"),
        "device": identity.device_key,
        "software": identity.software,
        "c_compiler": shutil.which("cc") or shutil.which("gcc"),
        "missing_packages": missing(),
    }
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
