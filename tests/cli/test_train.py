"""`unmask train sft` from the command line to a model that loads."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from unmask.cli.train import train_app
from unmask.models.checkpoints import load_checkpoint
from unmask.training.loop import latest_checkpoint

REFERENCE = Path(__file__).parents[1] / "data" / "reference" / "ckpt"
SMALL = ["--width", "16", "--layers", "1", "--heads", "2", "--feed-width", "16", "--batch-tokens", "256"]


@pytest.fixture(autouse=True)
def few_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.training.launch.TOKENIZER_PROBLEMS", 200)
    monkeypatch.setattr("unmask.training.data.CHUNK_EXAMPLES", 32)


def sft(*arguments: object) -> Result:
    return train("sft", *arguments)


def train(recipe: str, *arguments: object) -> Result:
    return CliRunner().invoke(train_app, [recipe, "--threads", "1", *map(str, arguments)])


def test_a_new_model_is_trained_resumed_and_loads(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = sft("--out", out, "--steps", 2, "--mix", "words=1,sudoku=1", *SMALL)
    assert first.exit_code == 0, first.output
    assert "step 2" in first.output
    again = sft("--out", out, "--steps", 2, "--mix", "words=1,sudoku=1", *SMALL)
    assert again.exit_code == 2
    assert "--resume" in again.output
    # Sizes come from the checkpoint when a run goes on.
    rest = sft("--out", out, "--steps", 3, "--mix", "words=1,sudoku=1", "--resume", "--batch-tokens", 256)
    assert rest.exit_code == 0, rest.output
    latest = latest_checkpoint(out)
    assert latest is not None
    assert latest.name == "step-00000003.pt"
    assert load_checkpoint(out / "model", device="cpu").backbone.config.width == 16


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_checkpoint_is_fine_tuned_on_the_users_data(tmp_path: Path, family: str) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "2+2", "answer": "4."}) + "\n")
    out = tmp_path / "run"
    result = sft("--out", out, "--init", REFERENCE / family, "--data", data, "--steps", 2, "--batch-tokens", 128)
    assert result.exit_code == 0, result.output
    tuned = load_checkpoint(out / "model", device="cpu")
    original = load_checkpoint(REFERENCE / family, device="cpu")
    assert tuned.facts == original.facts
    assert tuned.backbone.config == original.backbone.config


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "1", "--mix", "words"], "expected task=share"),
        (["--steps", "1", "--mix", "words=-1"], "must be positive"),
        (["--steps", "1", "--mix", "chess=1"], "chess"),
        ([], "--minutes"),
        (["--steps", "1", "--processes", "3"], "must divide"),
        (["--steps", "1", "--data", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--steps", "1", "--exclude-sudoku", "nowhere"], "nowhere"),
        (["--steps", "1", "--init", "no-such-model"], "no-such-model"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = sft("--out", tmp_path / "run", *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
