"""What is said of another runtime's error."""

from __future__ import annotations

import pytest

from braid.engine.program.model_file import reason_of


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Exception from src/inference/core.cpp:109:\nException from src/plugin.cpp:52:\n"
            "Check 'is_static' failed at src/node.cpp:7:\nthe rank is open\n\nand more",
            "Check 'is_static' failed at src/node.cpp:7: the rank is open",
        ),
        ("[ONNXRuntimeError] : 9 : no kernel\nat line 3", "[ONNXRuntimeError] : 9 : no kernel"),
        ("Exception from src/core.cpp:1:", "Exception from src/core.cpp:1:"),
        ("", "ValueError"),
    ],
)
def test_the_reason_is_whole_and_one_line(said: str, reason: str) -> None:
    assert reason_of(ValueError(said)) == reason
