"""Check what is delivered: ``python -m tests.supply_chain [--audit PROGRAM] [--sbom FILE]``.

Licences are compared with the allow-list. Versions are looked up among known vulnerabilities by
pip-audit, which needs its service: without a network one line says that it was left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import Distribution
from pathlib import Path

from deploy.sbom import bill
from tests.supply_chain.delivered import allowed, closure, unlicensed

_OURS = ("braid-serve", "braid-client")
_LEFT_OUT = "vulnerabilities: not looked up, {}"


def audit(program: Path, found: Mapping[str, Distribution]) -> list[str] | None:
    """Return a line for each known vulnerability that is not allowed; None if it cannot be told."""
    lines = [
        f"{name}=={one.version.partition('+')[0]}"
        for name, one in sorted(found.items())
        if name not in _OURS
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        command = [str(program), "-r", file.name, "--no-deps", "--disable-pip", "--format", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            report = json.loads(done.stdout)
        except FileNotFoundError:
            print(_LEFT_OUT.format(f"{program} is not installed"))
            return None
        except (ValueError, subprocess.TimeoutExpired):
            print(_LEFT_OUT.format("pip-audit cannot reach its service"))
            return None
    known = allowed()["advisories"]
    skipped = [each["name"] for each in report["dependencies"] if "skip_reason" in each]
    if skipped:
        print(f"vulnerabilities: {len(skipped)} distributions are unknown to the service")
    if len(skipped) == len(lines):
        return None
    return [
        f"{each['name']} {each['version']}: {one['id']}"
        for each in report["dependencies"]
        for one in each.get("vulns", ())
        if one["id"] not in known and not known.keys() & set(one.get("aliases", ()))
    ]


def main() -> int:
    """Check licences and versions; 1 if one of them is not allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain")
    parser.add_argument("--audit", type=Path, help="pip-audit's program")
    parser.add_argument("--sbom", type=Path, help="write the bill of materials of the closure")
    options = parser.parse_args()
    found = closure()
    findings = [f"licence: {line}" for line in unlicensed(found)]
    print(f"licences: {len(found)} distributions, {len(findings)} not on the allow-list")
    if options.audit is not None:
        vulnerable = audit(options.audit, found)
        if vulnerable is not None:
            print(f"vulnerabilities: {len(vulnerable)} that are not on the allow-list")
            findings += [f"vulnerable: {line}" for line in vulnerable]
    if options.sbom is not None:
        options.sbom.write_text(json.dumps(bill(found.values()), indent=1) + "\n")
    for line in findings:
        print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
