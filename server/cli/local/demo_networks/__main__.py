"""Write networks of the demo as ONNX files: ``FILE`` is the network's name and ``.onnx``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from braid.server.cli.local.demo_networks.network import NETWORKS
from braid.server.cli.local.demo_networks.onnx_file import write_onnx


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=list(NETWORKS))
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    options = parser.parse_args(arguments)
    for name in options.names:
        write_onnx(NETWORKS[name], options.out / f"{name}.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main())
