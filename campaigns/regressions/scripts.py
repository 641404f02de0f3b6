"""Where the scripts are, and what each one is given: a server that is not started yet."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests import ROOT
from tests.service.server_process import FOR_TESTS, ServerProcess

_NOT_SCRIPTS = {"__init__", "campaign", "scripts"}


class FaultyServer(ServerProcess):
    """``braid serve`` of any checkout, with a folder for the script's own files."""

    def __init__(self, folder: Path, tree: Path = ROOT) -> None:
        command = FOR_TESTS if tree == ROOT else (str(tree / ".venv/bin/braid"),)
        super().__init__(folder / "store", command=command, folder=tree)
        self.folder = folder

    def set(self, **environment: str) -> None:
        """Set ``BRAID_*`` variables for the next start."""
        self._environment.update(environment)


def script_names() -> list[str]:
    modules = {path.stem for path in Path(__file__).parent.glob("*.py")}
    return sorted(modules - _NOT_SCRIPTS)


def run(name: str, folder: Path, tree: Path = ROOT) -> None:
    """Run one script on a server of ``tree``, and end the server whatever happens.

    Raises:
        AssertionError: the fault is there.
    """
    server = FaultyServer(folder, tree.resolve())
    try:
        import_module(f"campaigns.regressions.{name}").check(server)
    finally:
        server.end()
