"""Ask the questions: ``python -m benchmarks.cuda_questions [--only 1,3] [--seconds 45]``.

Writes ``cuda_questions.json`` into ``--out`` (default: ``$OUT``, or benchmarks/results/local).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NoReturn

from benchmarks.contender_process import end_group
from benchmarks.cuda_questions.answers import Answer, Row, document, table
from benchmarks.cuda_questions.questions import QUESTIONS, Question
from benchmarks.environment import describe
from benchmarks.reports import replace_text
from braid.engine.processes.environment import cuda_environment

FILE = "cuda_questions.json"
NO_GPU = "no NVIDIA GPU (or no torch that sees one) here: nothing was asked"


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    if args.ask is not None:
        _ask(args.ask, args.models)
    if not _gpu_is_there():
        print(NO_GPU)
        return 0
    environment = describe("torch", "triton")
    answers: list[Answer] = []

    def write() -> None:
        replace_text(args.out / FILE, document(environment, answers))

    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        models = args.models or Path(folder)
        models.mkdir(parents=True, exist_ok=True)
        for question in QUESTIONS:
            if question.number in (args.only or [item.number for item in QUESTIONS]):
                answers.append(Answer(question.number, question.title))
                answer(answers[-1], question, models, args.seconds, write)
                print(table(answers[-1]), flush=True)
                write()
    return 0 if all(item.rows for item in answers) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda_questions",
        description="\n".join(f"{question.number}. {question.title}" for question in QUESTIONS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", type=_numbers, help="e.g. 1,3")
    parser.add_argument("--seconds", type=float, default=45.0, help="for each question")
    parser.add_argument("--models", type=Path, help="folder that benchmarks.cuda.prepare made")
    local = os.environ.get("OUT", "benchmarks/results/local")
    parser.add_argument("--out", type=Path, default=Path(local))
    parser.add_argument("--ask", type=int, help=argparse.SUPPRESS)  # in a process of its own
    return parser


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    unknown = set(numbers) - {question.number for question in QUESTIONS}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no question {min(unknown)}")
    return numbers


def _gpu_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


def answer(
    into: Answer, question: Question, models: Path, seconds: float, written: Callable[[], None]
) -> None:
    """Ask one question within a time limit, of which each of its environments has its share."""
    began = monotonic()
    for environment in question.environments:
        command = [sys.executable, "-m", "benchmarks.cuda_questions"]
        command += ["--ask", str(question.number), "--models", str(models)]
        share_s = seconds / len(question.environments)
        listen(into, command, {**cuda_environment(0), **environment}, share_s, written)
    into.seconds = monotonic() - began


def listen(
    into: Answer,
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Add the rows that a process prints; note how it ended if not well.

    What the process started ends with it: a compiler's workers may outlive it and hold its output
    open. ``written`` is called after each row, in another thread.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(environment),
            process_group=0,
        )
        reader = threading.Thread(target=_add_rows, args=(into, process, written))
        reader.start()
        overdue = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            overdue = True
        finally:
            code = end_group(process)
            reader.join()
        log.seek(0)
        last = log.read().strip().splitlines()[-1:]
    if overdue:
        into.problem = f"it took longer than {seconds:.0f} s"
    elif code:
        into.problem = "".join(last) or f"exit status {code}"


def _add_rows(into: Answer, process: subprocess.Popen[str], written: Callable[[], None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # half a line, of a process that was killed
                into.rows.append(Row.from_line(line))
                written()


def _ask(number: int, models: Path) -> NoReturn:
    """Print the rows of one question, one a line, as they are found, and end the process.

    Without the interpreter's clean-up, in which Inductor waits minutes for its workers.
    """
    import torch

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout
    (question,) = [one for one in QUESTIONS if one.number == number]
    status = 1
    try:
        with torch.inference_mode():
            for row in question.ask(models):
                answers.write(row.to_line() + "\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
