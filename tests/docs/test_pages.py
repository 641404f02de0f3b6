import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pydantic import ByteSize, SecretStr

from braid.server.fleet.metrics import FileMetrics, FollowMetrics, NodeMetrics
from braid.server.inference.call_memory import CallMemory, MemoryLimits
from braid.server.observability.metrics import Metrics, tell_build
from braid.server.observability.series.requests import watch_calls
from braid.server.settings import Settings
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
AT_THE_TOP = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
SOURCES = (
    *("core", "scheduler", "engine", "compiler", "server", "client", "charts", "library", "braid"),
)


def test_the_site_builds_without_a_warning_and_every_link_resolves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    assert "WARNING" not in ran.stderr
    assert (tmp_path / "quick-start/index.html").exists()


def test_files_that_are_named_exist() -> None:
    missing = []
    for page in (*AT_THE_TOP, *PAGES):
        for name in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page.read_text()):
            if name.startswith("benchmarks/results/"):
                continue  # made by whoever runs the benchmark
            if name.split("/")[0] in {
                *SOURCES,
                "docs",
                "deploy",
                "benchmarks",
                "campaigns",
                "protos",
                "tests",
                ".ci",
            }:
                places = (ROOT / name, ROOT / f"{name.rstrip('/')}.py")
                if not any(place.exists() for place in places):
                    missing.append(f"{page.name}: {name}")
    assert missing == []


def test_decisions_that_are_named_exist_and_all_are_in_their_index() -> None:
    records = {path.name for path in (DOCS / "decisions").glob("[0-9]*.md")}
    named = re.findall(r"docs/decisions/([\w.-]+\.md)", _sources())

    assert named
    assert set(named) - records == set()
    index = re.findall(
        r"^- \[\d+\]\((.+?)\)", (DOCS / "decisions/README.md").read_text(), re.MULTILINE
    )
    assert sorted(index) == sorted(records)


def test_links_of_the_pages_at_the_top_lead_to_files() -> None:
    for page in (*AT_THE_TOP, ROOT / "client/README.md"):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_targets_of_make_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (*AT_THE_TOP, *PAGES):
        for named in re.findall(r"(?:`|^    )make ([a-z -]+)", page.read_text(), re.MULTILINE):
            assert set(named.split()) <= targets, f"{page.name}: {named}"


def test_modules_that_are_named_exist() -> None:
    missing = []
    for page in (*AT_THE_TOP, *PAGES):
        for name in re.findall(rf"`braid\.((?:{'|'.join(SOURCES)})\.[\w.]+)`", page.read_text()):
            place = ROOT / name.replace(".", "/")
            module = place.parent.with_suffix(".py")
            is_inside = module.exists() and re.search(rf"\b{place.name}\b", module.read_text())
            if not (is_inside or place.is_dir() or place.with_suffix(".py").exists()):
                missing.append(f"{page.name}: braid.{name}")
    assert missing == []


def test_settings_that_are_named_exist() -> None:
    known = {f"BRAID_{name.upper()}" for name in Settings.model_fields}
    known |= {"BRAID_ADDRESS", "BRAID_TOKEN", "BRAID_PAPER_GRAPHS"}
    for page in (*AT_THE_TOP, *PAGES):
        named = set(re.findall(r"\bBRAID_[A-Z_]+[A-Z]\b", page.read_text()))
        assert named - known == set(), page.name


def test_every_setting_stands_in_the_table_once_with_its_default() -> None:
    rows = re.findall(
        r"^\| (`BRAID_.+?) \| (.+?) \|", (DOCS / "settings.md").read_text(), re.MULTILINE
    )
    listed: dict[str, str] = {}
    for names, defaults in rows:
        variables = re.findall(r"`(BRAID_\w+)`", names)
        given = [each.strip("` ") for each in defaults.split(",")]
        listed.update(
            zip(variables, given * len(variables) if given == ["none"] else given, strict=False)
        )
        assert given == ["none"] or len(given) == len(variables), names

    assert sum(names.count("BRAID_") for names, _ in rows) == len(listed), "one is listed twice"
    assert listed == {
        f"BRAID_{name.upper()}": _default_text(name, field.default)
        for name, field in Settings.model_fields.items()
    }


def _default_text(name: str, default: object) -> str:
    """A default as operators write it."""
    if name == "store":
        return "~/.local/share/braid"
    if name == "node_name":
        return "the host's name and a random part"
    if default in (None, (), "") or default == SecretStr(""):
        return "none"
    if name.endswith("_bytes") and isinstance(default, int) and default:
        return ByteSize(default).human_readable().replace(".0", "")
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return ", ".join(default) if isinstance(default, tuple) else str(default)


def test_the_table_of_metrics_is_complete() -> None:
    table = (DOCS / "operations.md").read_text().split("## Watch")[1].split("## Alerts")[0]
    documented = set(re.findall(r"`(braid_\w+)`", table))
    exposed, registry = set(), Metrics().registry
    for of_a_fleet in (NodeMetrics, FollowMetrics, FileMetrics):
        of_a_fleet(registry)
    tell_build(registry)
    watch_calls(registry, CallMemory(MemoryLimits(1, 1, 1)))
    for family in registry.collect():
        if family.name.startswith("braid_"):
            exposed.add(family.name + ("_total" if family.type == "counter" else ""))
    assert documented == exposed


def headings(page: str, level: str = "###") -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^{level} (.+)$", text, re.MULTILINE)


@pytest.mark.parametrize("message", headings("troubleshooting.md"))
def test_every_message_that_is_explained_is_one_that_is_said(message: str) -> None:
    """Words of the heading stand in this order in some message of the sources."""
    assert message in _said(), "no source says this (any more)"


@cache
def _said() -> str:
    """The sources, with messages of several lines in one."""
    return re.sub(r'"\s*\n\s*(?:rf?|f)?"', "", _sources())


@cache
def _sources() -> str:
    files = (path for name in SOURCES for path in sorted((ROOT / name).rglob("*.py")))
    return "\n".join(path.read_text() for path in files)


def test_the_drawn_pictures_are_current() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures.py"))["pictures"]()

    for name, picture in drawn.items():
        assert (DOCS / "images" / name).read_text() == picture, "run python docs/pictures.py"


def test_every_page_is_in_the_navigation_and_the_index_leads_to_all_but_a_few() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    index = (DOCS / "index.md").read_text()
    for page in PAGES:
        assert page.name in navigation, page.name
        assert page.name in index or page.name in ("index.md",), page.name


def test_pictures_are_pictures_and_all_of_them_are_shown() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    for image in sorted((DOCS / "images").iterdir()):
        content = image.read_bytes()
        assert content.startswith((b"\x89PNG\r\n", b"<svg ", b"<?xml ")), image.name
        assert 5_000 < len(content) < 300_000, image.name
        assert f"images/{image.name}" in shown, image.name
