"""LoRA adapters: what they change, what they leave alone, and their files."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from typer.testing import CliRunner

import unmask
from unmask.bench.environment import weights_hash
from unmask.cli.main import app
from unmask.errors import CheckpointError
from unmask.models.adapters import (
    ALL_LINEAR,
    LINEARS,
    LoraConfig,
    adapted_layers,
    adapter_off,
    adapter_parameters,
    attach,
    fold,
    merge,
    published_targets,
    unmerge,
)
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import FAMILIES, load_checkpoint
from unmask.models.checkpoints.adapters import save_adapter
from unmask.models.inspection import inspect_checkpoint
from unmask.models.tiny import tiny_backbone

REFERENCE = Path(__file__).parents[1] / "data" / "reference" / "ckpt"
LLADA = FAMILIES["llada"].tensor_names
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])

# What the published adapters target, and where the layers of a block stand in their tensor names.
D2F = {"llada": ("q_proj", "k_proj", "v_proj", "attn_out"), "dream": ("q_proj", "k_proj", "v_proj", "o_proj")}
LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLACE = {
    "llada": "model.transformer.blocks.{layer}.{name}",
    "dream": "model.layers.{layer}.{part}.{name}",
}
OURS = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "attn_out": "attention_out", "o_proj": "attention_out",
    "ff_proj": "gate", "gate_proj": "gate", "up_proj": "up", "ff_out": "down", "down_proj": "down",
}  # fmt: skip

torch.set_num_threads(1)


def backbone64(seed: int = 0, **sizes: Any) -> Backbone:
    return tiny_backbone(seed, **sizes).double()


def lora(**changes: Any) -> LoraConfig:
    return replace(
        LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "v_proj", "attn_out", "ff_proj", "ff_out")), **changes
    )


def with_adapter(config: LoraConfig | None = None, **sizes: Any) -> Backbone:
    """A backbone in float64 whose adapter does something."""
    backbone = backbone64(**sizes)
    attach(backbone, config or lora(), LLADA(backbone.config))
    disturb(backbone)
    return backbone


def disturb(backbone: Backbone) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for layer in adapted_layers(backbone):
            layer.lora_b.copy_(0.3 * torch.randn(layer.lora_b.shape, generator=generator))


def logits(backbone: Backbone) -> Tensor:
    with torch.no_grad():
        return backbone(TOKENS)


def write_published(
    folder: Path, family: str, targets: tuple[str, ...], *, rank: int = 4, listed: tuple[str, ...] = (), **keys: Any
) -> dict[str, Tensor]:
    """Files as peft writes them for the reference checkpoint of a family; returns the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(REFERENCE / family / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in range(3):
        for name in targets:
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            module = PLACE[family].format(layer=layer, part=part, name=name)
            outer, inner = weights[f"{module}.weight"].shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, inner, generator=generator)
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(outer, rank, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "base_model_name_or_path": f"someone/{family}", "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank,
        "lora_alpha": 2 * rank, "lora_dropout": 0.1, "target_modules": list(listed or targets), "bias": "none",
        "use_rslora": False, "inference_mode": True, "fan_in_fan_out": False, "modules_to_save": None,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | keys))
    return tensors


def refusal(family: str, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(REFERENCE / family, device="cpu", adapter=folder)
    return str(caught.value)


# what an adapter computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["kaiming", "gaussian"])
def test_a_new_adapter_changes_nothing(init: Any) -> None:
    backbone = backbone64()
    before = logits(backbone)
    attach(backbone, lora(targets=ALL_LINEAR), LLADA(backbone.config), init=init)
    assert len(adapted_layers(backbone)) == 2 * len(LINEARS)
    assert all(layer.lora_a.abs().max() > 0 for layer in adapted_layers(backbone))
    assert torch.equal(logits(backbone), before)


def test_an_adapted_layer_adds_the_scaled_product() -> None:
    backbone = with_adapter()
    layer = adapted_layers(backbone)[0]
    x = torch.randn(5, 16, dtype=torch.float64)
    wanted = x @ layer.weight.T + (6 / 3) * (x @ layer.lora_a.T @ layer.lora_b.T)
    torch.testing.assert_close(layer(x), wanted, rtol=0, atol=1e-13)


def test_scaling_by_the_root_of_the_rank_and_other_ranks_per_layer() -> None:
    config = lora(rslora=True, ranks={"v_proj": 2}, alphas={r"blocks\.1\.v_proj": 1.0})
    backbone = backbone64()
    attach(backbone, config, LLADA(backbone.config))
    first, second = backbone.blocks
    assert first.query.scaling == pytest.approx(6 / 3**0.5) and first.query.rank == 3
    assert first.value.scaling == pytest.approx(6 / 2**0.5) and first.value.lora_a.shape == (2, 16)
    assert second.value.scaling == pytest.approx(1 / 2**0.5)


@pytest.mark.parametrize("sizes", [{}, {"qkv_bias": True, "num_key_heads": 1}, {"tied": True}])
def test_merged_and_folded_equal_attached(sizes: dict[str, Any]) -> None:
    backbone = with_adapter(**sizes)
    attached = logits(backbone)
    assert (attached - logits(backbone64(**sizes))).abs().max() > 0.1
    merge(backbone)
    assert all(layer.merged is not None for layer in adapted_layers(backbone))
    torch.testing.assert_close(logits(backbone), attached, rtol=0, atol=1e-12)
    fold(backbone)
    assert not adapted_layers(backbone) and backbone.state_dict().keys() == backbone64(**sizes).state_dict().keys()
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    torch.testing.assert_close(logits(backbone), attached, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_unmerging_gives_back_every_bit(dtype: torch.dtype) -> None:
    backbone = tiny_backbone().to(dtype)
    attach(backbone, lora(), LLADA(backbone.config))
    disturb(backbone)
    attached, weights = logits(backbone), {name: w.clone() for name, w in backbone.state_dict().items()}
    merge(backbone)
    assert backbone.state_dict().keys() == weights.keys()
    unmerge(backbone)
    assert all(torch.equal(w, weights[name]) for name, w in backbone.state_dict().items())
    assert torch.equal(logits(backbone), attached)


@pytest.mark.parametrize("merged", [False, True])
def test_off_is_the_base_and_on_again_afterwards(merged: bool) -> None:
    base, backbone = logits(backbone64()), with_adapter()
    if merged:
        merge(backbone)
    attached = logits(backbone)
    with adapter_off(backbone):
        assert torch.equal(logits(backbone), base)
        with adapter_off(backbone):
            pass
        assert torch.equal(logits(backbone), base)
    assert torch.equal(logits(backbone), attached)
    with pytest.raises(KeyError), adapter_off(backbone):
        raise KeyError
    assert torch.equal(logits(backbone), attached)


def test_half_precision_weights_get_a_float32_adapter_and_round_once_when_folded() -> None:
    backbone = tiny_backbone().bfloat16()
    attach(backbone, lora(), LLADA(backbone.config))
    disturb(backbone)
    layer = adapted_layers(backbone)[0]
    assert layer.lora_a.dtype == layer.lora_b.dtype == torch.float32
    wanted = (layer.weight.double() + 2 * layer.lora_b.double() @ layer.lora_a.double()).bfloat16()
    assert logits(backbone).dtype == torch.bfloat16
    fold(backbone)
    torch.testing.assert_close(backbone.blocks[0].query.weight, wanted, rtol=2**-8, atol=0)


def test_dropout_acts_in_training_only() -> None:
    backbone = with_adapter(lora(dropout=0.5))
    assert torch.equal(logits(backbone), logits(backbone))
    backbone.train()
    assert not torch.equal(logits(backbone), logits(backbone))
    with adapter_off(backbone):
        assert torch.equal(logits(backbone), logits(backbone64()))


# training -------------------------------------------------------------------------------------------------------------


def test_training_the_adapter_moves_nothing_else_and_lowers_the_loss() -> None:
    backbone = backbone64()
    attach(backbone, lora(), LLADA(backbone.config))
    frozen = {name: w.clone() for name, w in backbone.state_dict().items() if "lora" not in name}
    matrices = adapter_parameters(backbone)
    assert [p for p in backbone.parameters() if p.requires_grad] == matrices
    start = [matrix.detach().clone() for matrix in matrices]
    optimizer = torch.optim.AdamW(matrices, lr=0.01)
    backbone.train()
    losses = []
    for _ in range(20):
        loss = functional.cross_entropy(backbone(TOKENS).flatten(0, 1), TOKENS.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(not torch.equal(old, new) for old, new in zip(start, matrices, strict=True))
    now = backbone.state_dict()
    assert all(torch.equal(w, now[name]) for name, w in frozen.items())
    assert all(parameter.grad is None for name, parameter in backbone.named_parameters() if "lora" not in name)


def test_training_ends_a_merge() -> None:
    backbone = with_adapter()
    merge(backbone)
    backbone.train()
    backbone(TOKENS).sum().backward()
    assert all(matrix.grad is not None and matrix.grad.abs().max() > 0 for matrix in adapter_parameters(backbone))


# which layers ---------------------------------------------------------------------------------------------------------


def test_the_families_targets_are_the_published_names() -> None:
    config = backbone64().config
    assert published_targets(LLADA(config)) == (
        "q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"
    )  # fmt: skip
    assert published_targets(FAMILIES["dream"].tensor_names(config)) == LLAMA
    assert published_targets(LLADA(config), ("query", "attention_out")) == ("q_proj", "attn_out")


def adapted_names(backbone: Backbone) -> set[str]:
    return {name for name, _ in backbone.named_modules() if name and hasattr(backbone.get_submodule(name), "lora_a")}


def test_targets_are_ends_of_names_a_pattern_or_some_layers() -> None:
    def names(**changes: Any) -> set[str]:
        backbone = backbone64()
        attach(backbone, lora(**changes), LLADA(backbone.config))
        return adapted_names(backbone)

    assert names(targets=("up_proj",)) == {"blocks.0.up", "blocks.1.up"}
    assert names(targets=("q_proj", "up_proj"), layers=(1,)) == {"blocks.1.query", "blocks.1.up"}
    assert names(targets=r".*blocks\.1\.(k|v)_proj") == {"blocks.1.key", "blocks.1.value"}
    assert names(targets=("q_proj",), excluded=("blocks.0.q_proj",)) == {"blocks.1.query"}
    assert names(targets=("model.transformer.blocks.0.ff_proj",)) == {"blocks.0.gate"}


def test_lladas_way_down_is_a_target_without_the_head_of_the_same_name() -> None:
    backbone = backbone64()
    adapter = attach(backbone, lora(targets=("ff_out",)), LLADA(backbone.config))
    assert adapted_names(backbone) == {"blocks.0.down", "blocks.1.down"}
    assert adapter.config.excluded == ("model.transformer.ff_out",)


def test_no_target_no_adapter_and_never_two() -> None:
    backbone = backbone64()
    with pytest.raises(ValueError, match=r"got \('o_proj',\), allowed ff_out, q_proj, k_proj, v_proj, attn_out"):
        attach(backbone, lora(targets=("o_proj",)), LLADA(backbone.config))
    attach(backbone, lora(), LLADA(backbone.config))
    with pytest.raises(ValueError, match="has an adapter already"):
        attach(backbone, lora(), LLADA(backbone.config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 0}, "rank must be at least 1: got 0"),
        ({"ranks": {"q_proj": 0}}, "rank must be at least 1: got 0"),
        ({"dropout": 1.0}, "below 1: got 1.0"),
        ({"targets": ()}, "at least one layer"),
    ],
)
def test_bad_values_are_refused(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lora(**changes)


# files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("merged", [True, False])
def test_a_published_adapter_gives_base_and_scaled_product(family: str, merged: bool, tmp_path: Path) -> None:
    """Names as in the adapters of D2F; alpha / r is 2."""
    tensors = write_published(tmp_path / "d2f", family, D2F[family])
    first = PLACE[family].format(layer=0, part="self_attn", name="q_proj")
    assert f"base_model.model.{first}.lora_A.weight" in tensors
    base = load_checkpoint(REFERENCE / family, device="cpu", dtype="float64").backbone
    loaded = load_checkpoint(
        REFERENCE / family, device="cpu", dtype="float64", adapter=tmp_path / "d2f", merge=merged
    ).backbone
    assert bool(adapted_layers(loaded)) is not merged
    with torch.no_grad():
        for layer, block in enumerate(base.blocks):
            for name in D2F[family]:
                module = PLACE[family].format(layer=layer, part="self_attn", name=name)
                b, a = (tensors[f"base_model.model.{module}.lora_{part}.weight"].double() for part in "BA")
                block.get_submodule(OURS[name]).weight += 2.0 * b @ a
    torch.testing.assert_close(logits(loaded), logits(base), rtol=0, atol=1e-9)
    if merged:
        for name, weight in base.state_dict().items():
            torch.testing.assert_close(loaded.state_dict()[name], weight, rtol=0, atol=1e-12)


def test_a_target_list_written_for_llama_hits_q_k_v_and_up_of_llada(tmp_path: Path) -> None:
    """As published for WINO+ and dParallel."""
    write_published(tmp_path, "llada", ("q_proj", "k_proj", "v_proj", "up_proj"), listed=LLAMA)
    with pytest.warns(UserWarning, match="match nothing in this model: o_proj, gate_proj, down_proj; .* attn_out"):
        loaded = load_checkpoint(REFERENCE / "llada", device="cpu", adapter=tmp_path, merge=False)
    blocks = [f"blocks.{layer}.{name}" for layer in range(3) for name in ("query", "key", "value", "up")]
    assert adapted_names(loaded.backbone) == set(blocks)
    with pytest.warns(UserWarning, match="match nothing"):
        backbone = backbone64()
        attach(backbone, lora(targets=LLAMA), LLADA(backbone.config))
    assert adapted_names(backbone) == {name for name in blocks if not name.startswith("blocks.2")}


def test_the_same_list_fits_dream_without_a_word(tmp_path: Path) -> None:
    write_published(tmp_path, "dream", LLAMA)
    loaded = load_checkpoint(REFERENCE / "dream", device="cpu", adapter=tmp_path, merge=False)
    assert len(adapted_names(loaded.backbone)) == 3 * len(LLAMA)


def test_an_adapter_on_the_head_is_read_and_means_the_same_merged_or_not(tmp_path: Path) -> None:
    """peft puts one there when `ff_out` of LLaDA is a target."""
    tensors = write_published(tmp_path, "llada", ("ff_out",))
    tensors["base_model.model.model.transformer.ff_out.lora_A.weight"] = torch.randn(4, 96)
    tensors["base_model.model.model.transformer.ff_out.lora_B.weight"] = torch.randn(64, 4)
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    options = {"device": "cpu", "dtype": "float64", "adapter": tmp_path}
    attached = load_checkpoint(REFERENCE / "llada", **options, merge=False).backbone
    assert "head" in adapted_names(attached)
    folded = load_checkpoint(REFERENCE / "llada", **options).backbone
    torch.testing.assert_close(logits(folded), logits(attached), rtol=0, atol=1e-9)
    with adapter_off(attached):
        assert torch.equal(logits(attached), logits(load_checkpoint(REFERENCE / "llada", dtype="float64").backbone))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_what_is_saved_is_loaded(family: str, tmp_path: Path) -> None:
    names = FAMILIES[family].tensor_names
    backbone = load_checkpoint(REFERENCE / family, device="cpu").backbone
    targets = published_targets(names(backbone.config))
    config = lora(
        targets=targets, dropout=0.25, rslora=True, ranks={"v_proj": 2}, alphas={"v_proj": 1.5}, layers=(0, 2)
    )
    adapter = attach(backbone, config, names(backbone.config))
    disturb(backbone)
    for _ in range(2):  # the second time it replaces the first
        save_adapter(backbone, adapter, tmp_path / "mine", base=f"someone/{family}")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    again = load_checkpoint(REFERENCE / family, device="cpu", adapter=tmp_path / "mine", merge=False)
    assert again.adapter is not None
    assert again.adapter.adapter.config == replace(adapter.config, base=f"someone/{family}")
    assert dict(again.adapter.adapter.modules) == dict(adapter.modules)
    ours, theirs = backbone.state_dict(), again.backbone.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert torch.equal(logits(again.backbone), logits(backbone))


def test_a_merged_adapter_is_saved_as_it_is(tmp_path: Path) -> None:
    backbone = backbone64()
    adapter = attach(backbone, lora(), LLADA(backbone.config))
    disturb(backbone)
    merge(backbone)
    save_adapter(backbone, adapter, tmp_path / "mine")
    stored = load_file(tmp_path / "mine" / "adapter_model.safetensors")
    assert torch.equal(stored["base_model.model.model.transformer.blocks.1.q_proj.lora_B.weight"],
                       backbone.blocks[1].query.lora_b)  # fmt: skip


def test_saving_replaces_no_folder_that_holds_anything_else(tmp_path: Path) -> None:
    backbone = backbone64()
    adapter = attach(backbone, lora(), LLADA(backbone.config))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds more than an adapter"):
        save_adapter(backbone, adapter, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_saving_that_fails_leaves_the_old_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = backbone64()
    adapter = attach(backbone, lora(), LLADA(backbone.config))
    save_adapter(backbone, adapter, tmp_path / "mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_adapter(backbone, adapter, tmp_path / "mine")
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before
    assert len(before) == 2 and [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A stored adapter of a block-causal model."""
    backbone = load_checkpoint(REFERENCE / "llada", device="cpu", attention="block_causal", block_length=4).backbone
    adapter = attach(backbone, lora(), LLADA(backbone.config))
    disturb(backbone)
    for _ in range(2):  # the second time it replaces the first
        save_adapter(backbone, adapter, tmp_path / "student")
    return tmp_path / "student"


def test_an_adapter_says_who_sees_whom(student: Path) -> None:
    assert json.loads((student / "unmask.json").read_text()) == {"attention": "block_causal", "block_length": 4}
    model = unmask.load(REFERENCE / "llada", device="cpu", adapter=student)
    assert (model.facts.attention, model.facts.block_length, model.facts.block_alignment) == (
        "block_causal",
        4,
        "prompt",
    )
    told = inspect_checkpoint(REFERENCE / "llada", adapter=student)
    assert (told["attention"], told["block_length"]) == ("block_causal", 4)


def test_what_is_asked_for_wins_over_what_an_adapter_says(student: Path) -> None:
    longer = unmask.load(REFERENCE / "llada", device="cpu", adapter=student, block_length=8).facts
    assert (longer.attention, longer.block_length) == ("block_causal", 8)
    plain = unmask.load(REFERENCE / "llada", device="cpu", adapter=student, attention="bidirectional").facts
    assert plain.attention == "bidirectional"


def test_a_bidirectional_models_adapter_says_nothing_about_it(tmp_path: Path) -> None:
    backbone = backbone64()
    save_adapter(backbone, attach(backbone, lora(), LLADA(backbone.config)), tmp_path / "mine")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.mark.parametrize(
    ("said", "words"),
    [("[]", "object"), ('{"attention": "sparse"}', "attention"), ('{"block_length": 0}', "block_length")],
)
def test_an_adapter_that_says_nonsense_is_refused(student: Path, said: str, words: str) -> None:
    (student / "unmask.json").write_text(said)
    message = refusal("llada", student)
    assert "unmask.json" in message and words in message


def test_an_adapter_of_another_family_is_refused_by_name(tmp_path: Path) -> None:
    write_published(tmp_path, "dream", D2F["dream"])
    message = refusal("llada", tmp_path)
    assert "does not fit this llada model (it was made for someone/dream)" in message
    assert "24 unknown: base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight" in message
    assert "missing: base_model.model.model.transformer.blocks.0.k_proj.lora_A.weight" in message


def test_tensors_of_the_wrong_shape_or_rank_are_refused(tmp_path: Path) -> None:
    tensors = write_published(tmp_path, "llada", ("q_proj",))
    wide = "base_model.model.model.transformer.blocks.1.q_proj.lora_A.weight"
    save_file(tensors | {wide: torch.zeros(4, 128)}, tmp_path / "adapter_model.safetensors")
    assert f"1 wrongly shaped: {wide} (expected [4, 96], got [4, 128])" in refusal("llada", tmp_path)
    write_published(tmp_path, "llada", ("q_proj",), r=8)
    assert "6 wrongly shaped" in (message := refusal("llada", tmp_path)) and "expected [8, 96], got [4, 96]" in message


def test_half_an_adapter_is_refused(tmp_path: Path) -> None:
    tensors = write_published(tmp_path, "llada", ("q_proj", "v_proj"))
    lost = "base_model.model.model.transformer.blocks.2.v_proj.lora_B.weight"
    save_file({name: t for name, t in tensors.items() if name != lost}, tmp_path / "adapter_model.safetensors")
    assert f"1 missing: {lost}" in refusal("llada", tmp_path)
    write_published(tmp_path, "llada", ("q_proj", "v_proj"), listed=("q_proj",))
    assert "3 not among the target modules of adapter_config.json: model.transformer.blocks.0.v_proj" in refusal(
        "llada", tmp_path
    )
    save_file({}, tmp_path / "adapter_model.safetensors")
    assert "6 missing" in refusal("llada", tmp_path)


def test_numbers_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    tensors = write_published(tmp_path, "llada", ("q_proj",))
    save_file({name: t.to(torch.int8) for name, t in tensors.items()}, tmp_path / "adapter_model.safetensors")
    assert "in an unsupported dtype" in refusal("llada", tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, 'peft_type = "IA3" is not supported'),
        ({"bias": "all"}, 'bias = "all" is not supported'),
        ({"use_dora": True}, "use_dora = true is not supported"),
        ({"modules_to_save": ["wte"]}, 'modules_to_save = ["wte"] is not supported'),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights = "pissa" is not supported'),
        ({"r": 0}, '"r" must be a whole number above 0: got 0'),
        ({"r": None}, '"r" must be a whole number above 0: got null'),
        ({"lora_alpha": "x"}, '"lora_alpha" must be a number'),
        ({"lora_dropout": 1}, '"lora_dropout" must be a number from 0 to below 1: got 1'),
        ({"target_modules": 3}, '"target_modules" must be a list of names or a pattern: got 3'),
        ({"rank_pattern": [1]}, '"rank_pattern" must be an object: got [1]'),
        ({"layers_to_transform": True}, '"layers_to_transform" must be'),
    ],
)
def test_a_config_that_asks_for_more_or_is_wrong_is_refused(changes: Any, words: str, tmp_path: Path) -> None:
    write_published(tmp_path, "llada", ("q_proj",), **changes)
    message = refusal("llada", tmp_path)
    assert words in message and "adapter_config.json" in message


def test_absent_files_are_named(tmp_path: Path) -> None:
    assert 'no adapter "' in refusal("llada", tmp_path / "nowhere")
    assert "adapter_config.json: no such file" in refusal("llada", tmp_path)
    write_published(tmp_path, "llada", ("q_proj",))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    assert "pickled weights (adapter_model.bin), which are never opened" in refusal("llada", tmp_path)
    assert "is a file" in refusal("llada", tmp_path / "adapter_config.json")


def test_a_misfit_is_found_before_the_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path, "dream", ("q_proj",))
    monkeypatch.setattr("unmask.models.checkpoints.fill", lambda *_, **__: 1 / 0)
    assert "does not fit" in refusal("llada", tmp_path)


def test_an_adapter_of_the_hub_is_downloaded_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path, "llada", ("q_proj",))
    asked = []

    def download(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load_checkpoint(REFERENCE / "llada", device="cpu", adapter="someone/lora@v1")
    files = ["adapter_config.json", "adapter_model.safetensors", "unmask.json"]
    assert asked == [("someone/lora", {"revision": "v1", "allow_patterns": files})]
    assert loaded.adapter is not None and loaded.adapter.source == "someone/lora@v1"


# through the front doors ----------------------------------------------------------------------------------------------


def test_a_model_with_an_adapter_answers_and_says_so(tmp_path: Path) -> None:
    write_published(tmp_path, "llada", D2F["llada"])
    base = unmask.load(REFERENCE / "llada", device="cpu")
    model = unmask.load(REFERENCE / "llada", device="cpu", adapter=tmp_path)
    assert base.origin == {"model": str(REFERENCE / "llada")}
    assert model.origin == base.origin | {"adapter": str(tmp_path)}
    plain, other = (unmask.generate(m, ["1 + 1 ="], length=12)[0].tokens for m in (base, model))
    attached = unmask.load(REFERENCE / "llada", device="cpu", adapter=tmp_path, merge=False)
    assert plain != other == unmask.generate(attached, ["1 + 1 ="], length=12)[0].tokens


def test_inspection_shows_the_adapter_and_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published(tmp_path, "llada", ("q_proj", "k_proj", "v_proj", "up_proj"), listed=LLAMA)
    monkeypatch.setattr("unmask.models.checkpoints.adapters.read_tensors", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="match nothing"):
        told = inspect_checkpoint(REFERENCE / "llada", tmp_path)["adapter"]
    assert (told["source"], told["base"], told["rank"], told["alpha"]) == (str(tmp_path), "someone/llada", 4, 8.0)
    assert told["unmatched"] == ["o_proj", "gate_proj", "down_proj"] and told["layers"] == 12
    assert told["parameters"] == 3 * 4 * (3 * (96 + 96) + (96 + 256))
    assert json.loads(json.dumps(told)) == told
    assert inspect_checkpoint(REFERENCE / "llada")["adapter"] is None


def test_the_commands_take_an_adapter(tmp_path: Path) -> None:
    adapter, data, rows = tmp_path / "lora", tmp_path / "sums.jsonl", tmp_path / "rows.jsonl"
    write_published(adapter, "llada", ("q_proj", "up_proj"))
    data.write_text(json.dumps({"prompt": "1+1=", "answer": "2"}))
    base = str(REFERENCE / "llada")

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="unmask")
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(run("generate", "1+1=", "--model", base, "--adapter", adapter, "--length", 12, "--json"))
    assert (found["model"], found["adapter"]) == (base, str(adapter))
    model = unmask.load(base, adapter=adapter)
    assert found["tokens"] == unmask.generate(model, ["1+1="], length=12)[0].tokens

    lines = dict(
        line.split(maxsplit=1) for line in run("inspect", base, "--adapter", adapter).splitlines() if line[0] != " "
    )
    assert lines["adapter"].startswith(str(adapter)[:20])
    assert "rank 4, alpha 8" in " ".join(run("inspect", base, "--adapter", adapter).split())

    run("bench", "--model", base, "--adapter", adapter, "--data", data, "--length", 4, "--json", "--out", rows)
    row = json.loads(rows.read_text().splitlines()[0])
    assert row["model"] == f"{base} + {adapter}"
    assert row["weights_hash"] == weights_hash(base, str(adapter)) != weights_hash(base)
