"""From a training checkpoint to a plain LLaDA checkpoint folder that the ordinary loader reads.

In training the input embedding is RMS-normed and tied to the output head. Both are baked: the exported input table is
`rmsnorm(E)`, the exported head is `E`, which gives the same logits from an untied model without the norm.
"""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from unmask.models.config import BackboneConfig
from unmask.training.loop import TrainingError, read_checkpoint

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")

_BLOCK_NAMES = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "attention_out": "attn_out",
    "gate": "ff_proj",  # the silu side
    "up": "up_proj",
    "down": "ff_out",
    "attention_norm": "attn_norm",
    "feed_norm": "ff_norm",
}


def llada_tensors(config: BackboneConfig, weights: dict[str, Tensor]) -> dict[str, Float[Tensor, "..."]]:
    """Weights of a `Backbone` under the names of the 8B release, embedding baked, still in their dtype."""
    if config.qkv_bias:
        raise ValueError("the LLaDA format has no biases: got qkv_bias=True")
    table = weights["embedding.weight"]
    normed = functional.rms_norm(table, (config.width,), eps=config.norm_epsilon) if config.normed_embedding else table
    named = {
        "model.transformer.wte.weight": normed,
        "model.transformer.ff_out.weight": table if config.tied else weights["head.weight"],
        "model.transformer.ln_f.weight": weights["norm.weight"],
    }
    for layer in range(config.num_layers):
        for ours, theirs in _BLOCK_NAMES.items():
            named[f"model.transformer.blocks.{layer}.{theirs}.weight"] = weights[f"blocks.{layer}.{ours}.weight"]
    return named


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


def export(checkpoint: Path, tokenizer_folder: Path, target: Path, *, averaged: bool = True) -> None:
    """Write a checkpoint folder in bfloat16, all of it or nothing.

    Args:
        checkpoint: `step-*.pt` of a training run whose facts hold the backbone's config and token ids.
        tokenizer_folder: has the tokenizer files.
        target: folder to make; an existing one made by an earlier export is replaced.
        averaged: the averaged (EMA) weights instead of the last ones.

    Raises:
        TrainingError: if the checkpoint cannot be read, or the target exists and is no checkpoint folder.
    """
    content = read_checkpoint(checkpoint)
    facts = content["facts"]
    config = BackboneConfig(**facts["config"])
    if target.exists() and not (target / "config.json").exists():
        raise TrainingError(f"{target} exists and is no checkpoint folder: choose another")
    tensors = llada_tensors(config, content["ema" if averaged else "model"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        fresh = Path(temporary) / "export"
        fresh.mkdir()
        save_file(
            {name: tensor.to(torch.bfloat16).clone().contiguous() for name, tensor in tensors.items()},
            str(fresh / "model.safetensors"),
            metadata={"format": "pt"},
        )
        written = llada_config(config, mask_id=facts["mask_id"], end_id=facts["end_id"])
        (fresh / "config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
        for name in TOKENIZER_FILES:
            shutil.copyfile(tokenizer_folder / name, fresh / name)
        if target.exists():
            target.rename(Path(temporary) / "old")
        fresh.rename(target)


def config_facts(config: BackboneConfig, *, mask_id: int, end_id: int) -> dict[str, Any]:
    """What a training checkpoint must carry for `export`."""
    return {"config": asdict(config), "mask_id": mask_id, "end_id": end_id}
