"""From a training checkpoint to a plain checkpoint folder that the ordinary loader reads.

In training the input embedding of a new model is RMS-normed and tied to the output head. Both are baked: the exported
input table is `rmsnorm(E)`, the exported head is `E`, which gives the same logits from an untied model without the
norm.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from unmask.models.adapters import Adapter, LoraConfig, adapt, fold
from unmask.models.checkpoints import FAMILIES, load_checkpoint
from unmask.models.checkpoints.adapters import save_adapter
from unmask.models.checkpoints.family import OWN_SECTION, own_section
from unmask.models.checkpoints.reading import empty_backbone
from unmask.models.config import BackboneConfig
from unmask.training.checkpoints import TrainingError, read_checkpoint

# What a model folder holds besides its weights; a run's folder holds those that its model has.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def baked(config: BackboneConfig, weights: Mapping[str, Tensor]) -> tuple[BackboneConfig, dict[str, Tensor]]:
    """The same function as an untied backbone without the embedding's norm."""
    if not config.normed_embedding:
        return config, dict(weights)
    table = weights["embedding.weight"]
    head = table if config.tied else weights["head.weight"]
    normed = functional.rms_norm(table, (config.width,), eps=config.norm_epsilon)
    return replace(config, tied=False, normed_embedding=False), {
        **weights,
        "embedding.weight": normed,
        "head.weight": head,
    }


def llada_config(config: BackboneConfig, *, mask_id: int, end_id: int) -> dict[str, Any]:
    """`config.json` with the keys of the 8B release."""
    return {
        "activation_type": "silu",
        "alibi": False,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": config.width,
        "embedding_dropout": 0.0,
        "embedding_size": config.vocab_size,
        "eos_token_id": end_id,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_device": "meta",
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": mask_id,
        "max_sequence_length": config.max_length,
        "mlp_hidden_size": config.feed_width,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": config.num_heads,
        "n_kv_heads": config.num_key_heads,
        "n_layers": config.num_layers,
        "pad_token_id": end_id,
        "residual_dropout": 0.0,
        "rms_norm_eps": config.norm_epsilon,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": config.rope_theta,
        "scale_logits": False,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "vocab_size": config.vocab_size,
        "weight_tying": False,
    }


def export(checkpoint: Path, target: Path, *, averaged: bool = True) -> None:
    """Write what a run has trained, all of it or nothing: a model folder in bfloat16, or an adapter in peft's format.

    Tokenizer files, and `config.json` of a fine-tuned model, come from the folder of the checkpoint; a new model gets a
    `config.json` in LLaDA's form. Both say so if attention is not bidirectional any more.

    Args:
        checkpoint: `step-*.pt` of a training run whose facts are those of `checkpoint_facts`.
        target: folder to make; a model or adapter folder that is there already is replaced.
        averaged: the averaged (EMA) weights instead of the last ones.

    Raises:
        TrainingError: if the checkpoint cannot be read, the target exists and is neither, or it cannot be written.
        CheckpointError: if the target exists and holds more than the adapter that it is to be replaced by.
    """
    content = read_checkpoint(checkpoint)
    facts, weights = content["facts"], content["ema" if averaged else "model"]
    config = BackboneConfig(**facts["config"])
    with _writing(target):
        if "lora" not in facts:
            _write_model(*baked(config, weights), facts, checkpoint.parent, target)
            return
        backbone, adapter = empty_backbone(config), adapter_of(facts)
        adapt(backbone, adapter)
        backbone.load_state_dict(weights, strict=False, assign=True)
        save_adapter(backbone, adapter, target)


def export_merged(checkpoint: Path, target: Path, *, averaged: bool = True) -> None:
    """Write the model below an adapter with the adapter added to its weights, as `export` writes a model.

    Args:
        checkpoint: of a run that trains an adapter.
        target: folder to make.
        averaged: as for `export`.

    Raises:
        TrainingError: if the run trains no adapter, or as for `export`.
        CheckpointError: if the model below it cannot be loaded.
    """
    content = read_checkpoint(checkpoint)
    facts = content["facts"]
    if "lora" not in facts:
        raise TrainingError(f"{checkpoint} holds no adapter to merge")
    loaded = load_checkpoint(facts["base"], device="cpu")
    adapt(loaded.backbone, adapter_of(facts))
    loaded.backbone.load_state_dict(content["ema" if averaged else "model"], strict=False)
    fold(loaded.backbone)
    with _writing(target):
        _write_model(BackboneConfig(**facts["config"]), loaded.backbone.state_dict(), facts, checkpoint.parent, target)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(f"{target} cannot be written: {error.strerror or error}") from None
    except SafetensorError as error:
        raise TrainingError(f"{target} cannot be written: {error}") from None


def _write_model(
    config: BackboneConfig, weights: Mapping[str, Tensor], facts: Mapping[str, Any], source: Path, target: Path
) -> None:
    """A model folder.

    Args:
        source: folder with the tokenizer, and with `config.json` of a fine-tuned model.
    """
    names = FAMILIES[facts.get("family", "llada")].tensor_names(config)
    if target.exists() and not (target / "config.json").exists():
        raise TrainingError(f"{target} exists and is no model folder: choose another")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        fresh = Path(temporary) / "export"
        fresh.mkdir()
        tensors = {theirs: weights[ours].to("cpu", torch.bfloat16).clone() for ours, theirs in names.items()}
        save_file(tensors, str(fresh / "model.safetensors"), metadata={"format": "pt"})
        # safetensors leaves its files readable by their owner only.
        (fresh / "model.safetensors").chmod(0o644)
        for name in MODEL_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, fresh / name)
        if (source / "config.json").exists():
            written = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"torch_dtype": "bfloat16"}
        else:
            written = llada_config(config, mask_id=facts["mask_id"], end_id=facts["end_id"])
        if own := own_section(config):
            written[OWN_SECTION] = written.get(OWN_SECTION, {}) | own
        (fresh / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.rename(Path(temporary) / "old")
        fresh.rename(target)


def adapter_of(facts: Mapping[str, Any]) -> Adapter:
    """The adapter that a checkpoint's facts describe."""
    return Adapter(LoraConfig(**facts["lora"]["config"]), facts["lora"]["modules"])


def adapter_facts(adapter: Adapter) -> dict[str, Any]:
    """What `adapter_of` reads, in plain types."""
    return {"lora": {"config": asdict(adapter.config), "modules": dict(adapter.modules)}}


def checkpoint_facts(
    config: BackboneConfig, *, mask_id: int, end_id: int, pad_id: int, shift: int, family: str
) -> dict[str, Any]:
    """What a training checkpoint must carry for `export` and for resuming without the model it started from."""
    return {
        "config": asdict(config),
        "mask_id": mask_id,
        "end_id": end_id,
        "pad_id": pad_id,
        "shift": shift,
        "family": family,
    }
