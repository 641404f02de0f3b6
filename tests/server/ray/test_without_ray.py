import sys

import pytest

from braid.server.cli.main import main


def test_without_the_extra_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    assert main(["ray", "deploy"]) == 1

    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "pip install 'braid-serve[ray]'" in line
