"""Run the backend tests of the onnx package: ``make onnx-backend``.

python -m tests.conformance [--kinds node,simple] [--match TEXT] [--processes 2] [--write]
"""

import argparse
import sys
from collections import Counter
from importlib.metadata import version

from braid.core.allowance import cpu_allowance
from tests.conformance.cases import KINDS, load_cases
from tests.conformance.document import DOCUMENT, as_markdown, unexplained
from tests.conformance.results import Result, Verdict, read_run, run_of, write_run
from tests.conformance.workers import run_cases


def main() -> int:
    """Run, print, and with ``--write`` keep the results and rewrite the document."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which tests, by commas")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--processes", type=int, default=cpu_allowance().threads)
    parser.add_argument("--write", action="store_true", help=f"rewrite {DOCUMENT.name}")
    parser.add_argument("--redraw", action="store_true", help="rewrite it from the kept results")
    options = parser.parse_args()
    if options.redraw:
        DOCUMENT.write_text(as_markdown(read_run()))
        return 0
    cases = [case for case in load_cases(options.kinds.split(",")) if options.match in case.name]
    results = run_cases(cases, options.processes, _show)
    run = run_of(_versions(), results)
    if options.write:
        write_run(run)
        DOCUMENT.write_text(as_markdown(run))
    count = Counter(result.verdict for result in run.others)
    print(
        f"{sum(run.passed.values())} passed, {len(run.others)} failed "
        f"({count[Verdict.REFUSED]} refused with a reason, {count[Verdict.FAILED]} failed while "
        f"running, {count[Verdict.WRONG]} silently wrong)"
    )
    bad = unexplained(run.others)
    for result in bad:
        print(f"WRONG without explanation: {result.name}: {result.reason}")
    return 1 if bad else 0


def _show(result: Result) -> None:
    if result.verdict in (Verdict.WRONG, Verdict.FAILED):
        print(f"{result.verdict}: {result.name} ({result.operator}): {result.reason}", flush=True)


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("onnx", "torch", "onnxruntime"))


if __name__ == "__main__":
    sys.exit(main())
