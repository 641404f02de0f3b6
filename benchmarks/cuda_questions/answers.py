"""Answers as they are found: rows of figures; a table of them, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

Figure = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """Something that was looked at, and what was seen."""

    what: str
    figures: Mapping[str, Figure]

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_line(line: str) -> Row:
        """The inverse of ``to_line``.

        Raises:
            ValueError: something else was printed.
        """
        document = json.loads(line)
        if not isinstance(document, dict) or set(document) != {"what", "figures"}:
            raise ValueError(f"not a row: {line[:100]!r}")
        return Row(document["what"], document["figures"])


@dataclass(slots=True)
class Answer:
    """What was seen of one question."""

    question: int
    title: str
    rows: list[Row] = field(default_factory=list)
    problem: str = ""  # why it is not answered, or not to the end
    seconds: float = 0.0


def table(answer: Answer) -> str:
    """An answer for people: one line a row."""
    lines = [f"{answer.question}. {answer.title} ({answer.seconds:.0f} s)"]
    width = max((len(row.what) for row in answer.rows), default=0)
    for row in answer.rows:
        figures = "  ".join(f"{name} {_shown(value)}" for name, value in row.figures.items())
        lines.append(f"   {row.what:{width}}  {figures}")
    if answer.problem:
        lines.append(f"   NOT TO THE END: {answer.problem}")
    return "\n".join(lines)


def _shown(value: Figure) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def document(environment: Mapping[str, object], answers: Sequence[Answer]) -> str:
    content = {"environment": environment, "answers": [asdict(answer) for answer in answers]}
    return json.dumps(content, indent=1) + "\n"
