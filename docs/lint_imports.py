"""import-linter with ``braid`` as a namespace: `make lint` runs ``python -m docs.lint_imports``.

It takes root packages below namespaces only, and ``braid`` has an ``__init__.py``, which nothing
but users' programs needs. So the package becomes a namespace in this process before the linter
looks for it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

from importlinter.cli import lint_imports_command

if __name__ == "__main__":
    spec = ModuleSpec("braid", None, is_package=True)
    spec.submodule_search_locations = [str(Path(__file__).resolve().parents[1] / ".types/braid")]
    sys.modules["braid"] = module_from_spec(spec)
    lint_imports_command()
