"""Rules about the package's own source that no linter here checks."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braid import scheduler

FILES = sorted(Path(scheduler.__file__).parent.glob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_function_takes_more_than_six_parameters(path: Path) -> None:
    for function in functions(path):
        arguments = function.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        assert len([a for a in named if a.arg != "self"]) <= 6, function.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_the_standard_library_and_core_are_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert all(is_allowed(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert is_allowed(node.module or "")


def is_allowed(module: str) -> bool:
    ours = module.startswith(("braid.core", "braid.scheduler"))
    return ours or module.partition(".")[0] in sys.stdlib_module_names
