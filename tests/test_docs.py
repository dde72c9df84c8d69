"""The docs say what the code does: generated pages are fresh, links lead somewhere, named tests and names exist."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.caches import CACHES
from unmask.core.schedules import SCHEDULES
from unmask.decoders import DECODERS
from unmask.registry import Registry

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def test_generated_parts_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "registry"), [("decoders.md", DECODERS), ("caches.md", CACHES), ("schedules.md", SCHEDULES)]
)
def test_every_part_and_every_field_has_its_line(page: str, registry: Registry[object]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, part in registry.items():
        if part.__module__.startswith("unmask."):
            section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert f"`{part.__name__}`" in section, f"{name} has no section"
            for field in dataclasses.fields(part):  # type: ignore[arg-type]
                assert f"\n| `{field.name}` |" in section, f"{name}.{field.name} has no line"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for match in LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if anchor and file.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name} links to #{anchor}, which {file.name} does not have"


def test_tests_named_in_the_docs_exist() -> None:
    known = set()
    for file in [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "examples").rglob("test_*.py")]:
        known |= set(re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
        known.add(file.stem)
    for page in PAGES:
        named = set(re.findall(r"\b(test_[a-z0-9_]+)\b", page.read_text(encoding="utf-8")))
        named = {name for name in named if not name.startswith(("test_steady", "test_name"))}
        assert named <= known, f"{page.name} names tests that are not there: {sorted(named - known)}"


def test_files_named_in_the_map_of_the_code_exist_and_none_is_missing() -> None:
    """docs/structure.md has one line per file of the package."""
    text = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\S+\.py)` \|", text, re.MULTILINE))
    package = ROOT / "src" / "unmask"
    there = {str(path.relative_to(package)) for path in package.rglob("*.py")}
    empty = {name for name in there if not (package / name).read_text(encoding="utf-8").strip()}
    assert named - there == set(), "the map names files that are not there"
    assert there - named - empty == set(), "files without a line in the map"
