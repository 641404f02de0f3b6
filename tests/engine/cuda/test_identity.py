"""What a GPU's measurements depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from braid.engine.cuda.identity import driver_version
from tests.engine.cuda.serving import GPU


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:16:27 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
    ],
)
def test_the_driver_s_version_is_read_from_either_kernel_module(tmp_path: Path, text: str) -> None:
    file = tmp_path / "version"
    file.write_text(f"{text}\nGCC version:  gcc version 13.3.0\n")

    assert driver_version(file) == "580.65.06"


def test_every_fact_changes_the_key() -> None:
    others = [
        replace(GPU, name="NVIDIA H100"),
        replace(GPU, capability=(10, 0)),
        replace(GPU, multiprocessors=114),
        replace(GPU, memory_bytes=80 << 30),
        replace(GPU, driver="550.1"),
        replace(GPU, cuda="12.8"),
        replace(GPU, cudnn="90100"),
        replace(GPU, torch="2.12.0"),
    ]

    assert len({GPU.device_key, *(other.device_key for other in others)}) == 9
