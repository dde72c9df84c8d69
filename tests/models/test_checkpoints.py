"""Reading checkpoints: what fits is loaded bit for bit, what does not is refused by name."""

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.errors import CheckpointError, RequestError
from unmask.models import checkpoints
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import Family, LoadedModel, dream, llada, load_checkpoint
from unmask.models.checkpoints.reading import Settings, empty_backbone
from unmask.models.config import BackboneConfig

REFERENCE = Path(__file__).parents[1] / "data" / "reference" / "ckpt"
FAMILIES = ["llada", "dream"]

torch.set_num_threads(1)

Tensors = dict[str, Tensor]


class Folder:
    """A copy of a reference checkpoint that a test may spoil."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path / name
        shutil.copytree(REFERENCE / name, self.path)

    def configure(self, **changes: Any) -> "Folder":
        """Change keys of config.json; `...` deletes one."""
        values = json.loads((self.path / "config.json").read_text()) | changes
        kept = {key: value for key, value in values.items() if value is not ...}
        (self.path / "config.json").write_text(json.dumps(kept))
        return self

    def rewrite(self, change: Callable[[Tensors], Tensors]) -> "Folder":
        tensors = change(load_file(self.path / "model.safetensors"))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self.path / "model.safetensors")
        return self

    def shard(self, shards: int = 3) -> "Folder":
        tensors = load_file(self.path / "model.safetensors")
        (self.path / "model.safetensors").unlink()
        index = {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in sorted(tensors)[number::shards]}
            save_file(part, self.path / file)
            index |= dict.fromkeys(part, file)
        self.index({"metadata": {}, "weight_map": index})
        return self

    def index(self, content: Any) -> None:
        (self.path / "model.safetensors.index.json").write_text(json.dumps(content))

    def load(self, **options: Any) -> LoadedModel:
        return load_checkpoint(self.path, **({"device": "cpu"} | options))

    def refusal(self) -> str:
        with pytest.raises(CheckpointError) as caught:
            self.load()
        return str(caught.value)


Make = Callable[[str], Folder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda name: Folder(tmp_path, name)


def assert_same_weights(one: Backbone, other: Backbone) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name


# facts and sizes ------------------------------------------------------------------------------------------------------


def test_llada_facts_come_from_its_config_and_tokenizer() -> None:
    loaded = load_checkpoint(REFERENCE / "llada", device="cpu")
    facts = loaded.facts
    assert (facts.mask_id, facts.end_ids, facts.banned_ids) == (56, (52, 55), (56,))
    assert (facts.family, facts.shift, facts.vocab_size, facts.max_length) == ("llada", 0, 64, 512)
    assert (facts.attention, facts.block_alignment) == ("bidirectional", "prompt")
    config = loaded.backbone.config
    assert (config.num_heads, config.num_key_heads, config.feed_width) == (6, 6, 256)
    assert (config.rope_theta, config.norm_epsilon, config.qkv_bias, config.tied) == (500_000.0, 1e-5, False, False)


def test_dream_facts_come_from_its_config_and_tokenizer() -> None:
    loaded = load_checkpoint(REFERENCE / "dream", device="cpu")
    facts = loaded.facts
    assert (facts.mask_id, facts.end_ids, facts.banned_ids) == (55, (51, 53), (55,))
    assert (facts.family, facts.shift, facts.vocab_size, facts.max_length) == ("dream", 1, 64, 512)
    config = loaded.backbone.config
    assert (config.num_heads, config.num_key_heads, config.feed_width) == (6, 2, 256)
    assert (config.rope_theta, config.norm_epsilon, config.qkv_bias, config.tied) == (1e6, 1e-6, True, False)


def test_the_published_sizes_are_understood() -> None:
    """Keys and sizes as in the two large checkpoints; no weights are needed to count them."""
    eight = {
        "model_type": "llada", "d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32, "vocab_size": 126464,
        "embedding_size": 126464, "mlp_hidden_size": 12288, "mlp_ratio": 4, "rope_theta": 500000.0, "alibi": False,
        "rms_norm_eps": 1e-5, "max_sequence_length": 4096, "weight_tying": False, "block_type": "llama",
        "layer_norm_type": "rms", "activation_type": "silu", "multi_query_attention": None, "include_bias": False,
    }  # fmt: skip
    seven = {
        "model_type": "Dream", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
        "num_hidden_layers": 28, "vocab_size": 152064, "intermediate_size": 18944, "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 131072, "tie_word_embeddings": False, "hidden_act": "silu",
        "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
    }  # fmt: skip
    for family, values, parameters in ((llada, eight, 8.02e9), (dream, seven, 7.62e9)):
        config = family.read_config(Settings(Path("config.json"), values))
        backbone = empty_backbone(config)
        assert sum(parameter.numel() for parameter in backbone.parameters()) == pytest.approx(parameters, rel=1e-3)
        assert family.tensor_names(config).keys() == dict(backbone.named_parameters()).keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_name_map_reads_every_stored_tensor_and_no_other(name: str) -> None:
    family = {"llada": llada, "dream": dream}[name]
    config = family.read_config(Settings.read(REFERENCE / name))
    names = family.tensor_names(config)
    assert names.keys() == dict(empty_backbone(config).named_parameters()).keys()
    assert set(names.values()) == set(load_file(REFERENCE / name / "model.safetensors"))
    assert len(set(names.values())) == len(names)


def test_the_mask_id_may_come_from_the_tokenizer_alone(make: Make) -> None:
    assert make("llada").configure(mask_token_id=...).load().facts.mask_id == 56


def test_several_end_ids_in_the_config(make: Make) -> None:
    assert make("dream").configure(eos_token_id=[53, 54]).load().facts.end_ids == (53, 54, 51)


def test_a_tokenizer_that_disagrees_about_the_mask_is_reported_and_the_config_followed(make: Make) -> None:
    folder = make("llada").configure(mask_token_id=57)
    with pytest.warns(UserWarning, match=r"mask id is 57, the tokenizer's mask token .* is 56"):
        assert folder.load().facts.mask_id == 57


def test_block_causal_attention_may_be_stated_in_the_own_section(make: Make) -> None:
    own = {"attention": "block_causal", "block_length": 16, "block_alignment": "absolute"}
    loaded = make("llada").configure(unmask=own).load()
    assert (loaded.facts.attention, loaded.facts.block_length) == ("block_causal", 16)
    assert loaded.facts.block_alignment == "absolute"
    assert (loaded.backbone.config.attention, loaded.backbone.config.block_length) == ("block_causal", 16)


def test_attention_and_block_length_can_be_replaced_at_load() -> None:
    loaded = load_checkpoint(REFERENCE / "dream", device="cpu", attention="block_causal", block_length=8)
    assert (loaded.facts.attention, loaded.facts.block_length) == ("block_causal", 8)
    assert (loaded.backbone.config.attention, loaded.backbone.config.block_length) == ("block_causal", 8)


def test_a_block_length_without_blocks_is_reported() -> None:
    with pytest.warns(UserWarning, match="block_length=8 has no effect"):
        load_checkpoint(REFERENCE / "llada", device="cpu", block_length=8)


# weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_shards_give_the_same_bits_as_one_file(make: Make, name: str) -> None:
    assert_same_weights(make(name).shard().load().backbone, load_checkpoint(REFERENCE / name, device="cpu").backbone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_weights_arrive_in_the_dtype_that_was_asked_for(dtype: str) -> None:
    loaded = load_checkpoint(REFERENCE / "llada", device="cpu", dtype=dtype)
    wanted = getattr(torch, dtype)
    assert loaded.dtype == wanted
    stored = load_file(REFERENCE / "llada" / "model.safetensors")
    names = llada.tensor_names(loaded.backbone.config)
    for name, parameter in loaded.backbone.named_parameters():
        assert torch.equal(parameter, stored[names[name]].to(wanted)), name
    logits = loaded.backbone(torch.arange(8)[None])
    assert logits.dtype == wanted and bool(logits.isfinite().all())


def test_auto_computes_small_models_in_float32_on_a_cpu(make: Make) -> None:
    folder = make("llada").rewrite(lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    loaded = folder.load()
    assert loaded.dtype == torch.float32
    assert_same_weights(loaded.backbone, folder.load(dtype=torch.float32).backbone)
    assert_same_weights(folder.load(dtype="bfloat16").backbone.float(), loaded.backbone)


def test_auto_keeps_the_stored_dtype_of_large_models(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("dream").rewrite(lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    monkeypatch.setattr(checkpoints, "SMALL", 1000)
    assert folder.load().dtype == torch.bfloat16


def test_dtypes_may_differ_from_tensor_to_tensor(make: Make) -> None:
    def mixed(tensors: Tensors) -> Tensors:
        return {name: tensor if tensor.ndim == 1 else tensor.half() for name, tensor in tensors.items()}

    loaded = make("dream").rewrite(mixed).load(dtype="float16")
    assert {parameter.dtype for parameter in loaded.backbone.parameters()} == {torch.float16}


def test_the_model_survives_its_file_being_overwritten(make: Make) -> None:
    folder = make("llada")
    loaded = folder.load()
    before = {name: tensor.clone() for name, tensor in loaded.backbone.state_dict().items()}
    size = (folder.path / "model.safetensors").stat().st_size
    with (folder.path / "model.safetensors").open("r+b") as file:
        file.write(bytes(size))
    assert all(torch.equal(before[name], tensor) for name, tensor in loaded.backbone.state_dict().items())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_prefix_that_tools_add_to_all_names_is_understood(make: Make, name: str, prefix: str) -> None:
    folder = make(name).rewrite(lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()})
    assert_same_weights(folder.load().backbone, load_checkpoint(REFERENCE / name, device="cpu").backbone)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_leading_model_may_be_absent(make: Make, name: str) -> None:
    folder = make(name).rewrite(
        lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    )
    assert_same_weights(folder.load().backbone, load_checkpoint(REFERENCE / name, device="cpu").backbone)


HEADS = {"llada": ("model.transformer.ff_out.weight", "model.transformer.wte.weight", "weight_tying"),
         "dream": ("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings")}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tied_head_is_the_embedding_table(make: Make, name: str) -> None:
    head, _, key = HEADS[name]
    folder = make(name).configure(**{key: True})
    folder.rewrite(lambda tensors: {name: tensor for name, tensor in tensors.items() if name != head})
    backbone = folder.load().backbone
    assert backbone.config.tied and backbone.head_weight is backbone.embedding.weight
    assert len(dict(backbone.named_parameters())) == len(load_file(folder.path / "model.safetensors"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tied_head_may_be_stored_as_well_if_it_is_the_table(make: Make, name: str) -> None:
    head, table, key = HEADS[name]
    folder = make(name).configure(**{key: True})
    folder.rewrite(lambda tensors: tensors | {head: tensors[table].clone()})
    assert folder.load().backbone.config.tied
    folder.rewrite(lambda tensors: tensors | {head: tensors[table] + 1})
    assert f"{head} and {table} differ" in folder.refusal()


def test_rows_that_pad_the_embedding_are_kept(make: Make) -> None:
    folder = make("llada").configure(embedding_size=80)
    padding = torch.full((16, 96), 0.5)

    def pad(tensors: Tensors) -> Tensors:
        grown = ("model.transformer.wte.weight", "model.transformer.ff_out.weight")
        return tensors | {name: torch.cat((tensors[name], padding)) for name in grown}

    loaded = folder.rewrite(pad).load()
    assert loaded.facts.vocab_size == 80
    tokens = torch.arange(16)[None]
    plain = load_checkpoint(REFERENCE / "llada", device="cpu").backbone(tokens)
    torch.testing.assert_close(loaded.backbone(tokens)[..., :64], plain, rtol=0, atol=1e-5)
    assert loaded.text.decode([25, 70, 26]) == "ab"


def test_rotary_frequencies_in_the_file_are_ignored(make: Make) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    assert make("dream").rewrite(lambda tensors: tensors | extra).load().facts.family == "dream"


# what is refused ------------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named(make: Make) -> None:
    lost = "model.transformer.blocks.1.ff_norm.weight"
    folder = make("llada").rewrite(lambda tensors: {name: tensors[name] for name in tensors if name != lost})
    assert f"1 missing: {lost}" in folder.refusal()


def test_an_unknown_tensor_is_named(make: Make) -> None:
    folder = make("dream").rewrite(lambda tensors: tensors | {"model.layers.0.mlp.extra.weight": torch.ones(2)})
    assert "1 unknown: model.layers.0.mlp.extra.weight" in folder.refusal()


def test_a_wrong_shape_is_named_with_both_shapes(make: Make) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    folder = make("dream").rewrite(lambda tensors: tensors | {name: torch.ones(96, 96)})
    assert f"1 wrongly shaped: {name} (expected [32, 96], got [96, 96])" in folder.refusal()


def test_a_long_list_of_faults_is_cut(make: Make) -> None:
    message = make("llada").configure(n_layers=7).refusal()
    assert "36 missing: " in message and message.endswith("and 28 more")


def test_all_kinds_of_fault_are_told_at_once(make: Make) -> None:
    def spoil(tensors: Tensors) -> Tensors:
        del tensors["model.transformer.ln_f.weight"]
        return tensors | {"spare": torch.ones(1), "model.transformer.wte.weight": torch.ones(3, 96)}

    message = make("llada").rewrite(spoil).refusal()
    assert "1 missing" in message and "1 unknown: spare" in message and "1 wrongly shaped" in message


def test_quantised_tensors_are_refused(make: Make) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    folder = make("dream").rewrite(lambda tensors: tensors | {name: torch.ones(256, 96, dtype=torch.int8)})
    message = folder.refusal()
    assert "unsupported dtype" in message and f"{name} (I8)" in message


def test_a_truncated_file_is_named(make: Make) -> None:
    folder = make("llada")
    file = folder.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    message = folder.refusal()
    assert str(file) in message and "truncated" in message


@pytest.mark.parametrize("content", [b"", b"\x00" * 4, b"not a tensor file at all", b"\xff" * 64])
def test_a_file_of_rubbish_is_named(make: Make, content: bytes) -> None:
    folder = make("llada")
    (folder.path / "model.safetensors").write_bytes(content)
    assert "model.safetensors: not a readable safetensors file" in folder.refusal()


def test_a_git_lfs_pointer_is_recognised(make: Make) -> None:
    folder = make("llada")
    (folder.path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in folder.refusal()


def test_an_index_that_names_an_absent_shard(make: Make) -> None:
    folder = make("llada").shard()
    (folder.path / "model-00002-of-00003.safetensors").unlink()
    assert 'names the shard "model-00002-of-00003.safetensors", which is not in' in folder.refusal()


def test_an_index_that_puts_a_tensor_in_the_wrong_shard(make: Make) -> None:
    folder = make("llada").shard()
    path = folder.path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.transformer.ln_f.weight"] = "model-00003-of-00003.safetensors"
    index["weight_map"]["model.transformer.wte.weight"] = "model-00003-of-00003.safetensors"
    folder.index(index)
    assert "not in the named shard" in folder.refusal()


@pytest.mark.parametrize("content", [[], {}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_map(make: Make, content: Any) -> None:
    folder = make("llada").shard()
    folder.index(content)
    assert "model.safetensors.index.json" in folder.refusal()


def test_an_index_that_leads_out_of_the_folder(make: Make) -> None:
    folder = make("llada").shard()
    folder.index({"weight_map": {"model.transformer.wte.weight": "../elsewhere.safetensors"}})
    assert "shards must lie next to the index" in folder.refusal()


def test_pickled_weights_are_never_opened(make: Make) -> None:
    folder = make("llada")
    (folder.path / "model.safetensors").rename(folder.path / "pytorch_model.bin")
    message = folder.refusal()
    assert "pytorch_model.bin" in message and "never opened" in message


def test_a_folder_without_weights(make: Make) -> None:
    folder = make("llada")
    (folder.path / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in folder.refusal()


def test_a_folder_without_config(make: Make) -> None:
    folder = make("llada")
    (folder.path / "config.json").unlink()
    assert "config.json: no such file" in folder.refusal()


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_config_that_is_not_a_json_object(make: Make, content: str) -> None:
    folder = make("llada")
    (folder.path / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "config.json: " in folder.refusal()


def test_an_unknown_model_type_lists_the_known_ones(make: Make) -> None:
    message = make("llada").configure(model_type="gpt2").refusal()
    assert 'no adapter for model_type "gpt2"; known: dream, llada' in message
    assert (
        '"model_type" must be a string: it is missing'
        in Folder(make("dream").path, "dream").configure(model_type=...).refusal()
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llada", "d_model"),
        ("llada", "n_heads"),
        ("llada", "n_layers"),
        ("llada", "vocab_size"),
        ("llada", "rope_theta"),
        ("llada", "max_sequence_length"),
        ("dream", "hidden_size"),
        ("dream", "num_attention_heads"),
        ("dream", "num_hidden_layers"),
        ("dream", "vocab_size"),
        ("dream", "intermediate_size"),
        ("dream", "rope_theta"),
        ("dream", "max_position_embeddings"),
    ],
)
@pytest.mark.parametrize("value", [..., -1, "many", True, None])
def test_a_key_that_is_missing_or_invalid_is_named(make: Make, name: str, key: str, value: Any) -> None:
    message = make(name).configure(**{key: value}).refusal()
    assert f'config.json: "{key}" must be' in message


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llada", {"alibi": True}),
        ("llada", {"layer_norm_type": "default"}),
        ("llada", {"block_type": "sequential"}),
        ("llada", {"activation_type": "swiglu"}),
        ("llada", {"attention_layer_norm": True}),
        ("llada", {"include_bias": True}),
        ("llada", {"include_qkv_bias": True}),
        ("llada", {"bias_for_layer_norm": True}),
        ("llada", {"layer_norm_with_affine": False}),
        ("llada", {"input_emb_norm": True}),
        ("llada", {"scale_logits": True}),
        ("llada", {"rope": False}),
        ("llada", {"block_group_size": 4}),
        ("llada", {"clip_qkv": 8.0}),
        ("dream", {"hidden_act": "gelu"}),
        ("dream", {"use_mrope": True}),
        ("dream", {"use_sliding_window": True, "sliding_window": 4096}),
        ("dream", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ("dream", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("dream", {"rope_parameters": {"rope_type": "llama3"}}),
        ("dream", {"head_dim": 32}),
        ("dream", {"unmask": {"attention": "sideways"}}),
        ("llada", {"unmask": {"block_alignment": "left"}}),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(make: Make, name: str, changes: dict[str, Any]) -> None:
    message = make(name).configure(**changes).refusal()
    key = next(iter(changes.get("unmask", changes)))
    assert key in message and "not supported" in message


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("llada", {"n_heads": 7}, "num_heads must divide width"),
        ("dream", {"num_key_value_heads": 4}, "num_key_heads must divide num_heads"),
        ("llada", {"embedding_size": 32}, '"embedding_size" must be at least vocab_size (64)'),
        ("llada", {"mask_token_id": 64}, "mask_id must be in the vocabulary: got 64, allowed 0..63"),
        ("llada", {"mask_token_id": [1, 2]}, '"mask_token_id" must be one token id'),
        ("llada", {"mask_token_id": "mask"}, '"mask_token_id" must be a token id'),
        ("llada", {"mask_token_id": 52}, "the mask id cannot end an answer"),
        ("dream", {"eos_token_id": 99}, "end_ids must be in the vocabulary: got 99"),
        ("dream", {"rope_scaling": "yarn"}, '"rope_scaling" must be an object or null'),
        ("llada", {"unmask": 3}, '"unmask" must be an object'),
        ("llada", {"unmask": {"block_length": 0}}, '"block_length" must be a whole number above 0'),
        ("llada", {"weight_tying": "no"}, '"weight_tying" must be true or false'),
        ("llada", {"vocab_size": 40, "embedding_size": 40}, "the vocabulary"),
    ],
)
def test_values_that_contradict_each_other(make: Make, name: str, changes: dict[str, Any], part: str) -> None:
    assert part in make(name).configure(**changes).refusal()


def test_a_tokenizer_larger_than_the_embedding_does_not_belong_to_the_model(make: Make) -> None:
    message = make("llada").configure(vocab_size=60, embedding_size=60).refusal()
    assert "the tokenizer does not belong to this model: it has ids up to 63, the embedding ends at 59" in message


def test_newer_spellings_of_the_rotary_settings(make: Make) -> None:
    rope = {"rope_theta": 1e6, "rope_type": "default"}
    newer = make("dream").configure(rope_theta=..., rope_scaling=..., rope_parameters=rope, head_dim=16)
    assert newer.load().backbone.config.rope_theta == 1e6


def test_options_that_llada_may_leave_out(make: Make) -> None:
    folder = make("llada").configure(n_kv_heads=None, embedding_size=None, mlp_hidden_size=..., rms_norm_eps=...)
    config = llada.read_config(Settings.read(folder.path))
    assert (config.num_key_heads, config.vocab_size, config.feed_width, config.norm_epsilon) == (6, 64, 384, 1e-5)
    assert llada.read_config(Settings.read(folder.configure(multi_query_attention=True).path)).num_key_heads == 1


# where checkpoints come from ------------------------------------------------------------------------------------------


def test_a_name_that_is_nothing() -> None:
    for name in ("nowhere", "./nowhere", "a/b/c", Path("nowhere/at-all"), "/nowhere/at-all"):
        with pytest.raises(CheckpointError, match="there is no such folder"):
            load_checkpoint(name)


def test_a_file_in_place_of_a_folder() -> None:
    with pytest.raises(CheckpointError, match="is a file; name the folder"):
        load_checkpoint(REFERENCE / "llada" / "config.json")


def test_an_included_model_that_is_not_installed() -> None:
    with pytest.raises(CheckpointError, match=r'"builtin:no-such" is not part of this installation'):
        load_checkpoint("builtin:no-such")


def test_an_included_model_is_found_in_the_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make("dream").path.parent
    (package / "dream").rename(package / "builtin")
    monkeypatch.setattr("unmask.models.checkpoints.included.resources.files", lambda name: package)
    assert load_checkpoint("builtin", device="cpu").facts.family == "dream"


def test_a_hub_name_is_downloaded_without_pickles_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options, repository=repository)
        return str(REFERENCE / "dream")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load_checkpoint("someone/Some-Model.v1@refs/pr/1", device="cpu")
    assert loaded.source == "someone/Some-Model.v1@refs/pr/1" and loaded.folder == REFERENCE / "dream"
    assert (asked["repository"], asked["revision"]) == ("someone/Some-Model.v1", "refs/pr/1")
    assert asked["allow_patterns"] == ["*.json", "*.txt", "*.jinja", "*.safetensors"]


def test_an_offline_hub_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r'no folder "someone/model" here, and it could not be downloaded'):
        load_checkpoint("someone/model")


def test_a_plug_in_brings_another_family(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    family = Family("mine", llada.read_config, llada.read_facts, llada.tensor_names)
    point = metadata.EntryPoint("mine", "unmask_test_plugin:FAMILY", "unmask.checkpoints")
    monkeypatch.setattr(checkpoints.metadata, "entry_points", lambda group: [point])
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: family)
    folder = make("llada").configure(model_type="Mine")
    assert folder.load().facts.mask_id == 56
    monkeypatch.setattr(metadata.EntryPoint, "load", lambda self: "nonsense")
    assert "is no Family" in folder.refusal()
    assert "known: dream, llada, mine" in folder.configure(model_type="other").refusal()


# devices and dtypes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "load", "float8_e4m3fn", torch.int64])
def test_a_dtype_that_cannot_hold_weights(dtype: Any) -> None:
    with pytest.raises(RequestError, match="allowed: auto, float64, float32, float16, bfloat16"):
        load_checkpoint(REFERENCE / "llada", device="cpu", dtype=dtype)


def test_a_device_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match='no device "abacus"'):
        load_checkpoint(REFERENCE / "llada", device="abacus")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match='device "cuda:0" is not available'):
        load_checkpoint(REFERENCE / "llada", device="cuda:0")
    with pytest.raises(RequestError, match='device "meta" is not supported; use cpu, cuda, mps or auto'):
        load_checkpoint(REFERENCE / "llada", device="meta")
    assert load_checkpoint(REFERENCE / "llada").device == torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_auto_on_a_gpu_keeps_the_stored_dtype(make: Make) -> None:
    folder = make("llada").rewrite(lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    loaded = folder.load(device="auto")
    assert (loaded.device.type, loaded.dtype) == ("cuda", torch.bfloat16)


def test_an_empty_backbone_costs_no_memory() -> None:
    backbone = empty_backbone(BackboneConfig(126464, 4096, 32, 32, 32, 12288))
    assert all(parameter.is_meta for parameter in backbone.parameters())
    assert backbone.state_dict().keys() == dict(backbone.named_parameters()).keys()
