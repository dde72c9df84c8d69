"""docs/write-a-decoder.md, followed to the letter: its files are the real ones, they install, and they work."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import REFERENCE

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "write-a-decoder.md"
PLUGIN = ROOT / "examples" / "decoder-plugin"
MARK = re.compile(r"<!-- file: (\S+) -->\n```\w*\n(.*?)```\n", re.DOTALL)
BUILT = ("build", "__pycache__", "*.egg-info", ".*")  # what tools leave behind


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in installed by pip, without the network; the folder of the repository stays clean."""
    work = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, work / "source", ignore=shutil.ignore_patterns(*BUILT))
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", work / "site", work / "source"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return work / "site"


def with_plugin(installed: Path, *arguments: str | Path) -> str:
    """Standard output of a fresh Python that sees the plug-in."""
    environment = os.environ | {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_shows_every_file_of_the_plug_in_word_for_word() -> None:
    shown = dict(MARK.findall(PAGE.read_text(encoding="utf-8")))
    ignored = {path for pattern in BUILT for path in PLUGIN.rglob(pattern)}
    files = [path for path in PLUGIN.rglob("*") if path.is_file() and not ignored & {path, *path.parents}]
    assert set(shown) == {str(path.relative_to(ROOT)) for path in files}
    for path in files:
        assert shown[str(path.relative_to(ROOT))] == path.read_text(encoding="utf-8")


def test_the_table_of_the_page_is_the_table_of_the_test() -> None:
    """Each cell is `token .confidence`, a committed one in bold."""
    rows = [
        line.split("|")[2:8] for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d \|", line)
    ]
    cells = [{slot: cell.strip() for slot, cell in enumerate(row, start=2) if cell.strip()} for row in rows]
    test: dict[str, Any] = {}
    text = (PLUGIN / "tests" / "test_steady.py").read_text(encoding="utf-8")
    exec(text[text.index("TABLE = ") :].partition("\n\n")[0], test)
    said = [
        {
            slot: (int(token), float(confidence))
            for slot, cell in row.items()
            for token, confidence in [cell.strip("*").split()]
        }
        for row in cells
    ]
    assert said == test["TABLE"]
    bold = [[slot for slot, cell in row.items() if cell.startswith("**")] for row in cells]
    assert bold == [[2], [4], [3, 7], [5], [6]]


@pytest.mark.slow
def test_unmask_list_shows_it_with_its_fields(installed: Path) -> None:
    found = json.loads(with_plugin(installed, "-m", "unmask", "list", "decoders", "--json"))
    entry = next(entry for entry in found["decoders"] if entry["name"] == "steady")
    assert entry["plugin"] == "unmask-steady"
    assert [field["name"] for field in entry["fields"]] == ["threshold", "patience", "floor"]
    assert all(field["doc"] for field in entry["fields"])


@pytest.mark.slow
def test_generate_runs_it_with_every_cache_and_schedule(installed: Path) -> None:
    script = f"""
import json, unmask, warnings
warnings.simplefilter("ignore")
model = unmask.load({str(REFERENCE / "ckpt" / "llada")!r}, device="cpu")
told = []
for cache in unmask.CACHES:
    for schedule in ("sequential(block_length=8)", "whole"):
        if (cache, schedule) == ("finished-blocks", "whole"):
            continue
        answer, = unmask.generate(
            model, ["we sort: 3 1 2"], decoder="steady(patience=1)", cache=cache, schedule=schedule, length=24
        )
        told.append([cache, answer.finish_reason, len(answer.canvas), answer.trajectory.facts["decoder"], answer.nfe])
print(json.dumps(told))
"""
    told = json.loads(with_plugin(installed, "-c", script))
    assert {cache for cache, *_ in told} >= {"none", "prefix", "dual"}
    for _, reason, size, decoder, nfe in told:
        assert reason in ("stop", "length") and size > 24 and decoder == "steady(patience=1)" and 1 <= nfe <= 24


@pytest.mark.slow
def test_its_own_tests_pass_as_installed(installed: Path) -> None:
    """The worked example and the bounds."""
    ran = with_plugin(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN, "-k", "not invariants")
    assert "3 passed" in ran


@pytest.mark.slow
def test_it_keeps_the_invariants_of_all_methods(installed: Path) -> None:
    ran = with_plugin(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", PLUGIN, "-k", "invariants")
    assert "1 passed" in ran
