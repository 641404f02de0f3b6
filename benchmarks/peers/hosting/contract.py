"""What a peer says of itself: ``servers/NAME/peer.toml`` beside its program ``serve.py``.

    dynamic_batching = false       # offers it; where not, its server without it takes part
    models = ["identity"]          # left out: any
    [contenders]                   # left out: one, with the folder's name, no more arguments
    thirty_lines = ["--more", "arguments"]

Servers speak the Open Inference Protocol v2 over gRPC, with raw contents. ``requirements.txt``
beside it names the packages of its environment in exact versions. Without that file the program
runs in the environment of the benchmark.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SERVERS = Path(__file__).parents[1] / "servers"
FIRST = ("braid", "thirty_lines")
"""First parts of names of peers that come before others."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A server program with its arguments, as one row of the results."""

    name: str
    folder: Path
    dynamic_batching: bool = False
    models: tuple[str, ...] = ()  # empty: any
    arguments: tuple[str, ...] = ()

    @property
    def requirements(self) -> Path | None:
        """The file with its packages; None: the benchmark's own environment."""
        path = self.folder / "requirements.txt"
        return path if path.exists() else None

    def serves(self, model: str) -> bool:
        return not self.models or model in self.models


def read_peer(folder: Path) -> list[Contender]:
    """The contenders that the peer in ``folder`` brings.

    Raises:
        ValueError: ``peer.toml`` says something that is not in the contract.
    """
    said = tomllib.loads((folder / "peer.toml").read_text())
    contenders = said.pop("contenders", {folder.name: []})
    models = tuple(said.pop("models", ()))
    try:
        return [
            Contender(name, folder, models=models, arguments=tuple(arguments), **said)
            for name, arguments in contenders.items()
        ]
    except TypeError as error:
        raise ValueError(f"{folder / 'peer.toml'}: {error}") from error


def find_contenders(names: Sequence[str] = (), servers: Path = SERVERS) -> list[Contender]:
    """Those of ``names``, which are contenders or folders of peers; all without names.

    Raises:
        ValueError: nothing has one of the names.
    """
    folders = [path.parent for path in servers.glob("*/peer.toml")]
    folders.sort(key=lambda folder: (not folder.name.startswith(FIRST), folder.name))
    listed = [contender for folder in folders for contender in read_peer(folder)]
    unknown = set(names) - {c.name for c in listed} - {c.folder.name for c in listed}
    if unknown:
        there = ", ".join(contender.name for contender in listed)
        raise ValueError(f"no peer named {', '.join(sorted(unknown))}; there are: {there}")
    return [c for c in listed if not names or c.name in names or c.folder.name in names]
