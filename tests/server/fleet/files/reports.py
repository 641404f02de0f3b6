"""Reports of artefacts that no import made."""

from __future__ import annotations

from pathlib import Path

from braid.engine.importer.host.report import (
    REPORT_FILE,
    Report,
    Verified,
    file_digest,
    report_text,
)


def write_report(artefact: Path, sha256: str) -> None:
    """Write the report of a folder's files."""
    report = Report(
        sha256=sha256,
        size_bytes=1,
        source="onnx",
        opset=17,
        batch=None,
        static_inputs=(),
        example_shapes={},
        static_values={},
        warnings=(),
        verified=Verified("none", (1,), 0.0, 1e-4),
        files={path.name: file_digest(path) for path in artefact.iterdir()},
    )
    (artefact / REPORT_FILE).write_text(report_text(report))
