"""braid.compiler stands below the server: it can be read, loaded and used without it."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests import ROOT

ABOVE = ("braid.server", "braid.library")
MODULES = sorted((ROOT / "compiler").glob("**/*.py"))


def imported(source: str) -> set[str]:
    """Modules that a file imports anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_no_module_imports_the_server_or_the_library() -> None:
    assert len(MODULES) > 10
    assert [
        (module.name, name)
        for module in MODULES
        for name in imported(module.read_text())
        if name.startswith(ABOVE)
    ] == []


def test_to_compile_loads_nothing_of_the_server_and_no_torch() -> None:
    program = "import sys, braid.compiler.compile, braid.compiler.bench; print(*sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = ran.stdout.split()
    assert "braid.engine.link.messages" in loaded
    assert [name for name in loaded if name.startswith((*ABOVE, "torch", "sqlalchemy"))] == []
