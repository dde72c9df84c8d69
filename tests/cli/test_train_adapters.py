"""`unmask train` with adapters, with the other recipes, with evaluation, and from bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import unmask
from unmask.cli.train import groups_of, parameters_of, train_app
from unmask.evaluation.tasks import Problem
from unmask.models.checkpoints import load_checkpoint
from unmask.training.loop import latest_checkpoint, read_checkpoint
from unmask.training.recipes.table import RECIPES
from unmask.training.rollouts import RolloutOptions, collect

CHECKPOINTS = Path(__file__).parents[1] / "data" / "reference" / "ckpt"
LLADA, DREAM = CHECKPOINTS / "llada", CHECKPOINTS / "dream"


@pytest.fixture(autouse=True)
def few_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.training.data.CHUNK_EXAMPLES", 16)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+{n}", "answer": f"{2 * n}."}) + "\n" for n in range(9)))
    return path


def train(recipe: str, *arguments: object) -> Result:
    always = ["--threads", 1, "--batch-tokens", 64, "--steps", 2]
    return CliRunner().invoke(train_app, [recipe, *map(str, [*always, *arguments])])


def logits_of(name: str | Path, **options: object) -> torch.Tensor:
    backbone = load_checkpoint(name, device="cpu", **options).backbone  # type: ignore[arg-type]
    with torch.no_grad():
        return backbone(torch.arange(20).view(2, 10))


@pytest.mark.parametrize("base", [LLADA, DREAM], ids=["llada", "dream"])
def test_an_adapter_is_trained_resumed_and_loads_onto_its_base(tmp_path: Path, data: Path, base: Path) -> None:
    out = tmp_path / "run"
    arguments = ["--out", out, "--init", base, "--data", data, "--lora-rank", 4, "--adapter-rate", 0.05, "--merge"]
    first = train("sft", *arguments)
    assert first.exit_code == 0, first.output
    assert "adapter written to" in first.output
    rest = train("sft", *arguments, "--steps", 4, "--resume")
    assert rest.exit_code == 0, rest.output
    assert sorted(path.name for path in (out / "model").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert json.loads((out / "model" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    tuned = logits_of(base, adapter=out / "model")
    assert not torch.allclose(tuned, logits_of(base), atol=1e-3)
    # the merged model is rounded to bfloat16
    scale = tuned.abs().max().item()
    assert torch.allclose(logits_of(out / "merged"), tuned, atol=0.03 * scale)
    assert unmask.load(base, adapter=out / "model").facts == unmask.load(base).facts
    newest = latest_checkpoint(out)
    assert newest is not None
    assert all(".lora_" in name for name in read_checkpoint(newest)["model"])


def test_an_adapter_that_is_there_is_trained_on(tmp_path: Path, data: Path) -> None:
    first = train("sft", "--out", tmp_path / "one", "--init", LLADA, "--data", data, "--lora-rank", 2)
    assert first.exit_code == 0, first.output
    arguments = ["--init", LLADA, "--data", data, "--adapter", tmp_path / "one" / "model", "--adapter-rate", 0.05]
    second = train("sft", "--out", tmp_path / "two", *arguments)
    assert second.exit_code == 0, second.output
    config = json.loads((tmp_path / "two" / "model" / "adapter_config.json").read_text())
    assert config["r"] == 2
    one, two = (logits_of(LLADA, adapter=tmp_path / name / "model") for name in ("one", "two"))
    assert not torch.allclose(one, two, atol=1e-3)


def test_d2f_trains_the_papers_adapter_and_says_that_its_model_is_block_causal(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    result = train("d2f", "--out", out, "--init", LLADA, "--data", data, "--block-length", 8, "--merge")
    assert result.exit_code == 0, result.output
    config = json.loads((out / "model" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (32, 32, 0.1)
    assert config["target_modules"] == ["q_proj", "k_proj", "v_proj", "attn_out"]
    for facts in (unmask.load(LLADA, adapter=out / "model").facts, unmask.load(out / "merged").facts):
        assert (facts.attention, facts.block_length) == ("block_causal", 8)


def test_d2f_of_all_weights_resumes_with_the_teacher_it_started_with(tmp_path: Path, data: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments = ["--init", DREAM, "--data", data, "--full", "--rate", 0.001, "--schedule", "constant"]
    assert train("d2f", "--out", whole, *arguments, "--steps", 4).exit_code == 0
    assert train("d2f", "--out", cut, *arguments, "--steps", 2).exit_code == 0
    rest = train("d2f", "--out", cut, *arguments, "--steps", 4, "--resume")
    assert rest.exit_code == 0, rest.output
    one, other = (read_checkpoint(folder / "step-00000004.pt")["model"] for folder in (whole, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert load_checkpoint(whole / "model", device="cpu").backbone.config.attention == "block_causal"


def test_dparallel_learns_from_answers_in_a_file(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    result = train("dparallel", "--out", out, "--init", LLADA, "--data", data, "--lora-rank", 2)
    assert result.exit_code == 0, result.output
    config = json.loads((out / "model" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 2)
    assert len(config["target_modules"]) == 7


def test_a_causal_twin_is_exported_as_a_causal_model(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    result = train("ar", "--out", out, "--init", LLADA, "--data", data)
    assert result.exit_code == 0, result.output
    assert unmask.load(out / "model").facts.attention == "causal"


def test_evaluations_are_written_and_shown(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    looks = ["--eval-steps", 1, "--eval-data", data, "--eval-problems", 2, "--eval-length", 8]
    looks += ["--eval-decoder", "low-confidence(steps=4)"]
    result = train("sft", "--out", out, "--init", LLADA, "--data", data, *looks)
    assert result.exit_code == 0, result.output
    assert re.search(r"step 2, evaluated: accuracy 0\.\d+, forwards \d", result.output)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(0 < line["eval/forwards"] <= 8 for line in lines)


def test_other_options_of_the_steps_are_taken(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    more = ["--schedule", "cosine", "--warmup-steps", 1, "--clip", 0.5, "--ema-decay", 0, "--precision", "bfloat16"]
    more += ["--gradient-checkpointing", "--micro-batches", 3, "--last-rate", 0.5, "--max-length", 40]
    result = train("sft", "--out", out, "--init", DREAM, "--data", data, *more)
    assert result.exit_code == 0, result.output
    assert "rate 0.50" in result.output
    content = read_checkpoint(out / "step-00000002.pt")
    assert all(torch.equal(content["ema"][name], value) for name, value in content["model"].items())


def test_answers_that_are_too_long_are_counted_and_left_out_or_cut(
    tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with data.open("a") as file:
        file.write(json.dumps({"prompt": "Count.", "answer": "one two three " * 40}) + "\n")
        file.write(json.dumps({"prompt": "What? " * 60, "answer": "Yes."}) + "\n")
    arguments = ["--init", LLADA, "--data", data, "--max-length", 100]
    result = train("sft", "--out", tmp_path / "left-out", *arguments)
    assert result.exit_code == 0, result.output
    assert "2 of 11 examples are longer than 100 tokens and are left out" in caplog.text
    caplog.clear()
    result = train("sft", "--out", tmp_path / "cut", *arguments, "--truncate")
    assert result.exit_code == 0, result.output
    assert "1 of 11 examples are longer than 100 tokens and are left out" in caplog.text
    assert "1 of 11 answers are cut at 100 tokens" in caplog.text


@pytest.mark.parametrize(
    ("recipe", "arguments", "words"),
    [
        ("d2f", [], "give --init"),
        ("sft", ["--lora-rank", "4"], "give --init"),
        ("sft", ["--lora-rank", "0", "--init", LLADA], "--lora-rank must be at least 1"),
        ("sft", ["--lora-rank", "4", "--init", LLADA, "--lora-targets", "c_attn"], "c_attn"),
        ("sft", ["--merge", "--init", LLADA], "--lora-rank"),
        ("d2f", ["--full", "--lora-rank", "4", "--init", LLADA], "--full trains all weights"),
        ("d2f", ["--init", LLADA, "--block-length", "0"], "block_length must be at least 1"),
        ("wino-plus", ["--init", LLADA], "--rollouts"),
        ("wino-plus", ["--init", LLADA, "--rollouts", "nowhere"], "nowhere"),
        ("sft", ["--init", LLADA, "--shard"], "more than one process"),
        ("sft", ["--init", LLADA, "--clip", "0"], "clip must be above 0"),
        ("sft", ["--init", LLADA, "--decay-start", "2"], "decay_start must be from 0 to 1"),
        ("sft", ["--init", LLADA, "--eval-data", "nowhere.jsonl"], "nowhere.jsonl"),
        ("sft", ["--init", LLADA, "--eval-steps", "1", "--eval-decoder", "treshold"], "threshold"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, recipe: str, arguments: list[object], words: str) -> None:
    result = train(recipe, "--out", tmp_path / "run", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert not list(tmp_path.glob("run/step*"))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "the file is empty"),
        ('{"prompt": "1", "answer": "1"}\n{"prompt": \n', "data.jsonl, line 2: not valid JSON"),
        ('{"prompt": "1", "answer": " "}\n', "data.jsonl, line 1: a prompt, answer or message is empty"),
    ],
)
def test_bad_data_names_its_line(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(lines)
    result = train("sft", "--out", tmp_path / "run", "--init", LLADA, "--data", path)
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_a_run_of_another_recipe_or_model_is_not_gone_on_with(tmp_path: Path, data: Path) -> None:
    out = tmp_path / "run"
    assert train("sft", "--out", out, "--init", LLADA, "--data", data).exit_code == 0
    other = train("ar", "--out", out, "--data", data, "--resume", "--steps", 3)
    assert other.exit_code == 2 and "trained with sft, not with ar" in other.output
    base = train("sft", "--out", out, "--init", DREAM, "--data", data, "--resume", "--steps", 3)
    assert base.exit_code == 2 and "was trained from" in base.output


@pytest.mark.parametrize("name", RECIPES)
def test_every_option_of_a_command_has_its_own_name_and_a_help_text(name: str) -> None:
    parameters = [one for group, kind in groups_of(RECIPES[name]).items() for one in parameters_of(group, kind)]
    assert len({one.name for one in parameters}) == len(parameters)
    help_text = CliRunner().invoke(train_app, [name, "--help"], env={"COLUMNS": "200"}).output
    for one in parameters:
        assert f"--{one.name.replace('_', '-')}" in help_text
        if name != "sft" and name != "ar":  # rates of these two speak for themselves
            assert one.annotation.__metadata__[0].help


def test_wino_plus_learns_from_rollouts(tmp_path: Path) -> None:
    """All answers count as right here, so that an untrained model has some to learn from."""
    model = unmask.load(LLADA)
    problems = [Problem("exact", f"{n}+{n}", "", f"key {n}") for n in range(3)]
    how = RolloutOptions("threshold(threshold=0.2)", "sequential(block_length=8)", (0.0,), 8)
    collect(model, problems, tmp_path / "rollouts", how, grade=lambda problems, texts: [True] * len(texts))
    out = tmp_path / "run"
    arguments = ["--init", LLADA, "--rollouts", tmp_path / "rollouts", "--lora-rank", 2, "--remask", 0.5]
    result = train("wino-plus", "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    assert (out / "model" / "adapter_model.safetensors").exists()


def in_processes(launcher: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Another program, so that nothing is patched in any process."""
    command = [*launcher, "-m", "unmask.cli.train", "sft", "--device", "cpu", "--threads", "1", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "options"),
    [([sys.executable], ["--processes", "2"]), (TORCHRUN, []), (TORCHRUN, ["--shard"])],
    ids=["own", "torchrun", "shard"],
)
def test_two_processes_train_what_one_trains(
    tmp_path: Path, data: Path, launcher: list[str], options: list[str]
) -> None:
    same = ["--init", LLADA, "--data", data, "--steps", 3, "--batch-tokens", 64, "--lora-rank", 4]
    same += ["--adapter-rate", 0.01]
    alone = in_processes([sys.executable], "--out", tmp_path / "alone", *same)
    assert alone.returncode == 0, alone.stderr
    done = in_processes(launcher, "--out", tmp_path / "two", *same, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 3, loss") == done.stdout.count("adapter written") == 1
    one, two = (read_checkpoint(tmp_path / name / "step-00000003.pt")["model"] for name in ("alone", "two"))
    assert all(torch.allclose(two[name], value, atol=1e-4) for name, value in one.items())
    assert (tmp_path / "two" / "model" / "adapter_config.json").exists()


@pytest.mark.slow
def test_a_process_that_fails_says_why_once(tmp_path: Path, data: Path) -> None:
    data.write_text('{"prompt": "1"}\n')
    arguments = ["--out", tmp_path / "run", "--init", LLADA, "--data", data, "--steps", 1, "--processes", 2]
    done = in_processes([sys.executable], *arguments)
    assert done.returncode == 2
    assert done.stderr.count("line 1: expected") == 1
    assert "Traceback" not in done.stderr
