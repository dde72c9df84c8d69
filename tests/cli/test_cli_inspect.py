"""`unmask inspect` on the reference checkpoints."""

import json
from pathlib import Path

import pytest
from commands import invoke, refused

from unmask.models.inspection import inspect_checkpoint

CHECKPOINTS = Path(__file__).parents[1] / "data" / "reference" / "ckpt"


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_json_is_what_inspection_says(family: str) -> None:
    result = invoke("inspect", CHECKPOINTS / family, "--json")
    assert result.exit_code == 0 and result.stderr == ""
    assert json.loads(result.stdout) == inspect_checkpoint(CHECKPOINTS / family)


def test_facts_are_readable() -> None:
    lines = dict(line.split(maxsplit=1) for line in invoke("inspect", CHECKPOINTS / "dream").stdout.splitlines())
    assert lines["family"] == "dream"
    assert lines["shift"] == "1 (the left neighbour speaks for a slot)"
    assert lines["parameters"].replace(",", "").split()[0].isdigit()
    assert "memory" in lines and "context" in lines


def test_memory_is_estimated_for_any_size() -> None:
    folder = CHECKPOINTS / "llada"
    small = json.loads(invoke("inspect", folder, "--json").stdout)["memory"]
    large = json.loads(invoke("inspect", folder, "--json", "--length", 2048, "--batch", 4).stdout)["memory"]
    assert (large["length"], large["batch"]) == (2048, 4)
    assert large["bytes"]["kv"] == small["bytes"]["kv"] * 4 * 2048 // small["length"]
    assert "4 rows of 2,048 slots" in invoke("inspect", folder, "--length", 2048, "--batch", 4).stdout


@pytest.mark.parametrize("arguments", [["/nowhere"], ["--length", "0"], ["--batch", "-1"], ["--batch", str(10**9)]])
def test_bad_input_is_one_line(arguments: list[str]) -> None:
    refused(invoke("inspect", *arguments))
