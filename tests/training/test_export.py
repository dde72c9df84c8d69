from dataclasses import replace
from pathlib import Path

import pytest
import torch

from training.helpers import copy_batches, tiny_config, tiny_model
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import load_checkpoint
from unmask.training.export import baked, checkpoint_facts, export
from unmask.training.loop import RunSettings, TrainingError, read_checkpoint, train
from unmask.training.recipes.sft import fresh_model, sft
from unmask.training.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer = train_tokenizer(["12 + 3 = 15"], vocab_size=512)
    save_tokenizer(tokenizer, folder, max_length=64)
    config = tiny_config(vocab_size=tokenizer.get_vocab_size())
    facts = checkpoint_facts(config, mask_id=1, end_id=0, pad_id=0, shift=0, family="llada")
    settings = RunSettings(steps=3, folder=folder, facts=facts)
    run = sft(fresh_model(config, 0), copy_batches(), settings, mask_id=1)
    list(train(run))
    return folder


def trained(folder: Path, part: str) -> Backbone:
    content = read_checkpoint(folder / "step-00000003.pt")
    config = tiny_config(vocab_size=content["facts"]["config"]["vocab_size"])
    model = Backbone(config)
    model.load_state_dict(content[part])
    return model.eval()


@pytest.mark.parametrize("averaged", [True, False])
def test_the_loader_reads_the_trained_model(folder: Path, tmp_path: Path, averaged: bool) -> None:
    export(folder / "step-00000003.pt", tmp_path / "model", averaged=averaged)
    loaded = load_checkpoint(tmp_path / "model", device="cpu")
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        expected = trained(folder, "ema" if averaged else "model")(tokens)
        assert torch.allclose(loaded.backbone(tokens), expected, atol=0.02 * expected.abs().max().item())
    facts = loaded.facts
    assert (facts.mask_id, facts.end_ids, facts.shift, facts.max_length) == (1, (0,), 0, 64)
    assert loaded.text.encode_chat([{"role": "user", "content": "12"}])[0] == 2


def test_baking_changes_no_logit() -> None:
    model = tiny_model()
    config, weights = baked(model.config, model.state_dict())
    assert config == replace(model.config, tied=False, normed_embedding=False)
    plain = Backbone(config)
    plain.load_state_dict(weights)
    tokens = torch.arange(24).view(2, 12)
    assert torch.allclose(plain(tokens), model(tokens), atol=1e-6)


def test_an_older_export_is_replaced_whole(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    export(folder / "step-00000003.pt", target)
    (target / "left-over").touch()
    export(folder / "step-00000003.pt", target)
    assert sorted(path.name for path in target.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_is_no_model_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a").touch()
    with pytest.raises(TrainingError, match="no model folder"):
        export(folder / "step-00000003.pt", tmp_path / "letters")
    assert (tmp_path / "letters" / "a").exists()
