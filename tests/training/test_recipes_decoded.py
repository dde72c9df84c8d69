"""From a model to a faster one and back to text: what recipes train is stored, loaded and decoded."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from conftest import REFERENCE
from training.learning import gained
from unmask.evaluation.problems import file_problems, grade
from unmask.models.adapters import Adapter, LoraConfig, attach, published_targets
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import FAMILIES, load_checkpoint
from unmask.models.checkpoints.adapters import save_adapter
from unmask.training.data import BucketedBatches, ChatEncoder, FileExamples
from unmask.training.export import MODEL_FILES, checkpoint_facts, export
from unmask.training.loop import RunSettings, Schedule, latest_checkpoint, train
from unmask.training.recipes.d2f import D2FOptions, d2f
from unmask.training.recipes.dparallel import DParallelOptions, dparallel
from unmask.training.recipes.wino_plus import WinoPlusOptions, wino_plus
from unmask.training.replay import TrajectorySamples
from unmask.training.rollouts import RolloutOptions, collect, read_answers, write_answers

BASE = REFERENCE / "ckpt" / "llada"
PROMPTS = ["Add 2 and 3.", "Add 4 and 1.", "Name a fish.", "Add 7 and 2."]
SETTINGS = RunSettings(steps=12, micro_batches=1, schedule=Schedule(warmup_steps=0, decay_start=1.0), ema_decay=0.0)
OPTIONS = RolloutOptions(
    decoder="wino(draft=0.2, verify=0.3)", schedule="sequential(block_length=8)", length=16, temperatures=(0.0,)
)


def trainable(family: str = "llada") -> Backbone:
    return load_checkpoint(REFERENCE / "ckpt" / family, device="cpu", dtype="float32").backbone.requires_grad_(True)


def adapted(family: str = "llada") -> tuple[Backbone, Adapter]:
    model = trainable(family)
    names = FAMILIES[family].tensor_names(model.config)
    return model, attach(model, LoraConfig(rank=4, alpha=8.0, targets=published_targets(names)), names)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, llada: unmask.Model) -> Path:
    """Rollouts about problems that the model solves, because their answers are what it says."""
    folder = tmp_path_factory.mktemp("own")
    said = unmask.generate(llada, PROMPTS, decoder=OPTIONS.decoder, schedule=OPTIONS.schedule, length=OPTIONS.length)
    records = [{"prompt": prompt, "answer": one.text} for prompt, one in zip(PROMPTS, said, strict=True)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    problems = file_problems(folder / "problems.jsonl")
    done = collect(llada, problems, folder / "rollouts", OPTIONS, grade=grade)
    assert done.correct == len(PROMPTS)
    assert write_answers(folder / "rollouts", problems, llada.text, folder / "answers.jsonl") == len(PROMPTS)
    return folder


def texts_of(own: Path, model: unmask.Model) -> BucketedBatches:
    """The model's own answers as training data."""
    encoder = ChatEncoder(model.text, model.facts.end_ids[0])
    return BucketedBatches(
        FileExamples(own / "answers.jsonl", encoder, 0, model.facts.max_length),
        batch_tokens=256,
        pad_id=model.facts.end_ids[0],
        seed=0,
        max_length=model.facts.max_length,
    )


def test_written_answers_are_what_the_model_said(own: Path) -> None:
    """Easiest first, and read again by what reads training data."""
    wanted = {(one["prompt"], one["answer"]) for one in lines(own / "problems.jsonl")}
    assert {(one["prompt"], one["answer"]) for one in lines(own / "answers.jsonl")} == wanted


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(model: unmask.Model, decoder: str) -> int:
    """Forward passes that the prompts take."""
    return sum(one.nfe for one in unmask.generate(model, PROMPTS, decoder=decoder, length=16, stop="none"))


def test_a_model_learns_the_order_of_its_own_answers(own: Path, llada: unmask.Model, tmp_path: Path) -> None:
    """Rollouts, then WINO+ on them, then plain threshold decoding of what was trained."""
    model, adapter = adapted()
    samples = TrajectorySamples(read_answers(own / "rollouts"), batch_tokens=512, seed=0)
    run = wino_plus(model, samples, SETTINGS, mask_id=llada.facts.mask_id, options=WinoPlusOptions(rate=1e-2))
    assert gained(run) > 0.0
    save_adapter(model, adapter, tmp_path / "faster")
    faster = unmask.load(BASE, device="cpu", adapter=tmp_path / "faster")
    assert faster.facts == llada.facts
    assert steps_of(faster, "threshold(threshold=0.6)") < steps_of(llada, "threshold(threshold=0.6)")


def test_a_model_becomes_certain_of_its_own_answers(own: Path, llada: unmask.Model, tmp_path: Path) -> None:
    """Rollouts, then dParallel on their texts, then decoding by entropy."""
    model, adapter = adapted()
    options = DParallelOptions(block_length=8, rate=1e-2)
    run = dparallel(model, texts_of(own, llada), SETTINGS, mask_id=llada.facts.mask_id, options=options)
    assert gained(run) > 0.0
    save_adapter(model, adapter, tmp_path / "faster")
    faster = unmask.load(BASE, device="cpu", adapter=tmp_path / "faster")
    assert steps_of(faster, "entropy-threshold") < steps_of(llada, "entropy-threshold")


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_an_adapter_of_d2f_decodes_in_pipelined_blocks(
    own: Path, family: str, models: dict[str, unmask.Model], tmp_path: Path
) -> None:
    """Nothing has to be said: the adapter knows its blocks. The exact cache changes no token."""
    base = models[family]
    model, adapter = adapted(family)
    settings, options = replace(SETTINGS, steps=6), D2FOptions(block_length=4, rate=1e-2)
    facts = {"mask_id": base.facts.mask_id, "shift": base.facts.shift}
    assert gained(d2f(model, texts_of(own, base), settings, **facts, options=options)) > 0.0
    save_adapter(model, adapter, tmp_path / "student")
    student = unmask.load(REFERENCE / "ckpt" / family, device="cpu", adapter=tmp_path / "student")
    assert (student.facts.attention, student.facts.block_length) == ("block_causal", 4)
    cached, plain = (
        unmask.generate(student, PROMPTS, schedule="pipelined(block_length=4)", cache=cache, length=16)
        for cache in ("finished-blocks", "none")
    )
    assert [one.tokens for one in cached] == [one.tokens for one in plain]
    assert sum(one.rows_computed for one in cached) < sum(one.rows_computed for one in plain)


def test_a_whole_model_of_d2f_is_exported_as_block_causal(own: Path, llada: unmask.Model, tmp_path: Path) -> None:
    model, facts = trainable(), llada.facts
    told = checkpoint_facts(
        model.config, mask_id=facts.mask_id, end_id=facts.end_ids[0], pad_id=facts.end_ids[0], shift=0, family="llada"
    )
    folder = tmp_path / "run"
    folder.mkdir()
    for name in MODEL_FILES:
        if (BASE / name).exists():
            shutil.copyfile(BASE / name, folder / name)
    settings = replace(SETTINGS, steps=2, folder=folder, facts=told)
    list(train(d2f(model, texts_of(own, llada), settings, mask_id=facts.mask_id, options=D2FOptions(block_length=4))))
    newest = latest_checkpoint(folder)
    assert newest is not None
    export(newest, tmp_path / "student")
    student = unmask.load(tmp_path / "student", device="cpu")
    assert (student.facts.attention, student.facts.block_length) == ("block_causal", 4)
    unmask.generate(student, PROMPTS, schedule="pipelined(block_length=4)", cache="finished-blocks", length=16)
