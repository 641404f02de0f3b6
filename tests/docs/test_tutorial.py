import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT

TUTORIAL = ROOT / "docs/tutorial.ipynb"
CELL_SECONDS = 300


def test_the_tutorial_is_kept_without_outputs() -> None:
    notebook = nbformat.reads(TUTORIAL.read_text(), as_version=4)  # type: ignore[no-untyped-call]

    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the packages that drive a notebook
def test_the_tutorial_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = Path(sys.executable).parent
    for name, value in {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
    }.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.reads(TUTORIAL.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(tmp_path)}}

    ran: Any = NotebookClient(notebook, timeout=CELL_SECONDS, resources=resources).execute()

    shown = [
        output.data
        for cell in ran.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert any("<svg" in each.get("text/html", "") for each in shown), "the schedule"
    assert any("<table>" in each.get("text/html", "") for each in shown), "the answer"
    printed = [
        output.text for cell in ran.cells if "outputs" in cell for output in cell.outputs
        if output.output_type == "stream"
    ]  # fmt: skip
    assert any(text.startswith("True True") for text in printed), "what was saved is the same"
    assert shown[-1]["text/plain"] == "0", "the server's exit code"
