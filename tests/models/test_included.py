"""Variants of the built-in model: folders of the package, whole checkpoints or adapters on the built-in one."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import unmask
from conftest import REFERENCE
from unmask.bench.environment import weights_hash
from unmask.cli.listing import list_models
from unmask.cli.main import app
from unmask.errors import CheckpointError, RequestError
from unmask.models.adapters import LoraConfig, attach
from unmask.models.checkpoints import load_checkpoint
from unmask.models.checkpoints.adapters import save_adapter
from unmask.models.checkpoints.llada import tensor_names
from unmask.models.predictor import BackbonePredictor


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose built-in model is a tiny one, with a causal twin in bfloat16 and an adapter for D2F."""
    builtin = tmp_path / "builtin"
    shutil.copytree(REFERENCE / "ckpt" / "llada", builtin)
    twin = builtin / "ar"
    shutil.copytree(REFERENCE / "ckpt" / "llada", twin)
    config = json.loads((twin / "config.json").read_text()) | {"unmask": {"attention": "causal"}}
    (twin / "config.json").write_text(json.dumps(config))
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(twin / "model.safetensors").items()}
    save_file(weights, twin / "model.safetensors", metadata={"format": "pt"})
    backbone = load_checkpoint(builtin, device="cpu", attention="block_causal", block_length=16).backbone
    adapter = attach(
        backbone, LoraConfig(rank=2, alpha=8.0, targets=("q_proj", "v_proj")), tensor_names(backbone.config)
    )
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "lora_b" in name:
                parameter.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(1))
    save_adapter(backbone, adapter, builtin / "d2f")
    (builtin / "notes").mkdir()
    monkeypatch.setattr("unmask.models.checkpoints.included.resources.files", lambda name: tmp_path)
    return tmp_path


def test_a_variant_with_weights_is_a_checkpoint_of_its_own(package: Path) -> None:
    twin = unmask.load("builtin:ar", device="cpu")
    assert (twin.facts.attention, twin.facts.shift, twin.source) == ("causal", 1, "builtin:ar")
    assert isinstance(twin.predictor, BackbonePredictor)
    assert twin.predictor.backbone.embedding.weight.dtype == torch.float32, "stored in bfloat16, computed in float32"
    answer = unmask.generate(twin, ["1+2="], length=6, stop="none")[0]
    assert (answer.nfe, answer.rows_computed) == (6, len(answer.canvas) - 1)


def test_a_variant_with_an_adapter_is_the_built_in_model_under_it(package: Path) -> None:
    variant = unmask.load("builtin:d2f", device="cpu")
    by_hand = unmask.load(package / "builtin", device="cpu", adapter=package / "builtin" / "d2f")
    plain = unmask.load("builtin", device="cpu")
    assert (variant.facts.attention, variant.facts.block_length) == ("block_causal", 16)
    assert variant.origin == {"model": "builtin:d2f"}, "the adapter is part of the name"
    mine, same, other = (one.predictor.backbone.blocks[0].query.weight for one in (variant, by_hand, plain))  # type: ignore[attr-defined]
    assert torch.equal(mine, same) and not torch.equal(mine, other)
    with pytest.raises(RequestError, match='"builtin:d2f" is an adapter of the built-in model, and takes no second'):
        unmask.load("builtin:d2f", adapter=package / "builtin" / "d2f")


def test_an_unknown_variant_is_refused_with_what_there_is(package: Path) -> None:
    with pytest.raises(CheckpointError, match=r'"builtin:dparalel" is not part .*: builtin, builtin:ar, builtin:d2f$'):
        unmask.load("builtin:dparalel")
    with pytest.raises(CheckpointError, match='"builtin:notes" is not part'):
        unmask.load("builtin:notes")


def test_variants_are_listed_and_inspected(package: Path) -> None:
    listed = {one["name"]: one["summary"] for one in list_models()}
    assert [name for name in listed if name.startswith("builtin")] == ["builtin", "builtin:ar", "builtin:d2f"]
    assert "MB of an adapter on builtin" in listed["builtin:d2f"] and "MB of weights" in listed["builtin:ar"]
    twin, d2f = (
        json.loads(CliRunner().invoke(app, ["inspect", name, "--json"]).stdout)
        for name in ("builtin:ar", "builtin:d2f")
    )
    assert (twin["attention"], twin["shift"], twin["dtype"], twin["adapter"]) == ("causal", 1, "bfloat16", None)
    assert (d2f["attention"], d2f["block_length"], d2f["adapter"]["rank"]) == ("block_causal", 16, 2)


def test_every_variant_has_weights_of_its_own(package: Path) -> None:
    hashes = {weights_hash(name) for name in ("builtin", "builtin:ar", "builtin:d2f")}
    assert len(hashes) == 3 and None not in hashes
