"""Recipes of networks for a session with a GPU, written on a machine without one.

    python -m benchmarks.cuda.prepare --out build/gpu-networks [--networks squeezenet googlenet]

Exports and imports each network and writes its recipe, which is small enough to be carried.
``benchmarks.cuda.library`` makes the artefact of it where it is measured. Artefacts of earlier
recipes are removed.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cuda.agenda import CNNS
from benchmarks.cuda.library import artefact_of
from benchmarks.cuda.recipes import NoRecipe, write_recipe
from benchmarks.networks.registry import NETWORKS
from benchmarks.reports import parser_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a network has no recipe."""
    parser = parser_of("benchmarks.cuda.prepare", __doc__)
    parser.add_argument(
        "--networks", nargs="+", choices=NETWORKS, default=CNNS, help="default: the five CNNs"
    )
    parser.add_argument("--models", type=Path, help="where files and artefacts are kept")
    parser.add_argument("--out", type=Path, required=True, help="where the recipes go")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    with TemporaryDirectory() as temporary:
        models = options.models or Path(temporary)
        models.mkdir(parents=True, exist_ok=True)
        for name in options.networks:
            artefact = asyncio.run(artefact_of(name, models))
            try:
                recipe = write_recipe(name, artefact, options.out)
            except NoRecipe as reason:
                print(f"{name} has to be exported where it is measured: {reason}", file=sys.stderr)
                status = 1
                continue
            made_earlier = options.out / name
            if made_earlier != artefact:
                shutil.rmtree(made_earlier, ignore_errors=True)
            size = sum(file.stat().st_size for file in recipe.iterdir())
            print(f"{recipe}  {size / 1e6:.2f} MB", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
