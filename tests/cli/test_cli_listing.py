"""`unmask list`: read from the code, plug-ins included."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import invoke, refused

from unmask.caches import CACHES
from unmask.cli.listing import field_comments
from unmask.core.schedules import SCHEDULES, Sequential
from unmask.decoders import DECODERS
from unmask.decoders.quota import TopkMargin
from unmask.evaluation.tasks import PUBLISHED
from unmask.models.checkpoints import FAMILIES

REGISTRIES: dict[str, Any] = {"decoders": DECODERS, "caches": CACHES, "schedules": SCHEDULES, "tasks": PUBLISHED}


def test_everything_has_its_line() -> None:
    result = invoke("list")
    assert result.exit_code == 0 and result.stderr == ""
    for kind, registry in REGISTRIES.items():
        section = result.stdout.partition(f"{kind}\n")[2]
        for name in registry:
            assert f"\n  {name}" in f"\n{section}"
    for family in FAMILIES:
        assert f"\n  {family}\n" in result.stdout


def test_one_kind_only() -> None:
    result = invoke("list", "caches")
    assert "dual(refresh=None)  [approximate]" in result.stdout
    assert "none  [exact]" in result.stdout
    assert "threshold" not in result.stdout


def test_json_has_every_field_with_its_comment() -> None:
    found = json.loads(invoke("list", "--json").stdout)
    assert set(found) == {*REGISTRIES, "presets", "models"}
    for kind, registry in REGISTRIES.items():
        assert [entry["name"] for entry in found[kind]] == list(registry)
        for entry in found[kind]:
            fields = dataclasses.fields(registry[entry["name"]])
            assert [field["name"] for field in entry["fields"]] == [field.name for field in fields]
            assert entry["summary"] and entry["plugin"] is None
    threshold = next(entry for entry in found["decoders"] if entry["name"] == "threshold")
    first = threshold["fields"][0]
    assert (first["type"], first["default"], first["required"]) == ("float", 0.9, False)
    assert "smallest confidence that commits" in first["doc"]


def test_comments_are_found_on_wrapped_and_inherited_fields() -> None:
    comments = field_comments(TopkMargin)
    assert comments["steps"].startswith("forward passes")
    assert comments["compat"].startswith('"dream"')
    assert field_comments(Sequential)["block_length"] == "slots"
    assert field_comments(int) == {}


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = invoke("list", "decoders").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm")
    narrow = re.sub("\x1b\\[[0-9;]*m", "", invoke("list", "decoders").stdout)
    assert max(map(len, narrow.splitlines())) <= 50
    assert "".join(narrow.split()) == "".join(wide.split())


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with a decoder."""
    info = tmp_path / "far_away-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: far-away\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[unmask.decoders]\nmine = far_away_module:Mine\n", encoding="utf-8")
    (tmp_path / "far_away_module.py").write_text(
        '''from dataclasses import dataclass

from unmask.decoders import LowConfidence


@dataclass(frozen=True, slots=True)
class Mine(LowConfidence):
    """Do it my way."""

    speed: float = 2.5  # how much faster
''',
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(DECODERS.__dict__, "_entries", raising=False)
    yield tmp_path / "far_away_module.py"
    sys.modules.pop("far_away_module", None)
    DECODERS.__dict__.pop("_entries", None)


def test_plug_ins_are_marked_with_their_package(stranger: Path) -> None:
    entry = json.loads(invoke("list", "decoders", "--json").stdout)["decoders"][-1]
    assert (entry["name"], entry["plugin"], entry["summary"]) == ("mine", "far-away", "Do it my way.")
    assert entry["fields"][-1]["doc"] == "how much faster"
    assert "mine(steps=None, speed=2.5)  [plug-in of far-away]" in invoke("list", "decoders").stdout


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import module_that_is_not_there", "ModuleNotFoundError"),
        ("raise SystemError('two\\nlines')", "two lines"),
        ("Mine = 3", "must be a dataclass"),
        ("", "AttributeError"),
    ],
)
@pytest.mark.parametrize("command", [["list"], ["list", "--json"], ["generate", "hello"]])
def test_a_broken_plug_in_is_one_line(stranger: Path, source: str, words: str, command: list[str]) -> None:
    stranger.write_text(source, encoding="utf-8")
    refused(invoke(*command), 'error: plug-in decoder "mine"', words, "far-away")
