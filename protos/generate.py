"""Generate the Python code of the wire format.

    protos/braid/v1/*.proto ──protoc──> client/braid_client/wire/

The client package has the only copy; the server imports it. ``--check`` fails if the committed
code differs from what the .proto files give.

Generated code runs with the grpcio and protobuf that it was made for, and later ones. So
grpcio-tools is held back (constraints.txt): the client must not upgrade an application's packages.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO_ROOT = ROOT / "protos"
TARGET = ROOT / "client" / "braid_client" / "wire"


def generate() -> dict[str, str]:
    """Return file name -> content of all generated modules."""
    sources = sorted(str(path) for path in (PROTO_ROOT / "braid" / "v1").glob("*.proto"))
    well_known = str(Path(grpc_tools.__file__).parent / "_proto")
    with tempfile.TemporaryDirectory() as folder:
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO_ROOT}",
                f"-I{well_known}",
                f"--python_out={folder}",
                f"--pyi_out={folder}",
                f"--grpc_python_out={folder}",
                *sources,
            ]
        )
        if code != 0:
            raise SystemExit(f"protoc failed with {code}")
        generated = sorted(Path(folder, "braid", "v1").iterdir())
        # Relative imports, so that the code works in any package.
        absolute = re.compile(r"^from braid\.v1 import", re.MULTILINE)
        return {path.name: absolute.sub("from . import", path.read_text()) for path in generated}


def main() -> None:
    """Write the generated code, or compare it with what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check = parser.parse_args().check
    stale = []
    for name, content in generate().items():
        path = TARGET / name
        if check and (not path.exists() or path.read_text() != content):
            stale.append(str(path.relative_to(ROOT)))
        elif not check:
            path.write_text(content)
    if stale:
        sys.exit(f"stale generated code: {', '.join(stale)}; run `make protos`")


if __name__ == "__main__":
    main()
