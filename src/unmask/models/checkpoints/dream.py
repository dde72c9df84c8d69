"""Dream-7B and DiffuCoder: config keys, tensor names, facts. Both are Qwen2-shaped.

Source: config.json and the tensor names of the published checkpoints (Ye et al., Dream 7B, arXiv 2508.15487; Gong et
al., DiffuCoder, arXiv 2506.20639).
"""

from unmask.errors import CheckpointError
from unmask.models.checkpoints.family import Family, gather_facts, own_settings
from unmask.models.checkpoints.reading import Settings
from unmask.models.config import BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text

_BLOCK = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "feed_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def tensor_names(config: BackboneConfig) -> dict[str, str]:
    """Our tensor names -> the names in published Dream checkpoints; both ways round for reading and export."""
    names = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    if not config.tied:
        names["head.weight"] = "lm_head.weight"
    for layer in range(config.num_layers):
        for ours, theirs in _BLOCK.items():
            names[f"blocks.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"
            if config.qkv_bias and ours in ("query", "key", "value"):
                names[f"blocks.{layer}.{ours}.bias"] = f"model.layers.{layer}.{theirs}.bias"
    return names


def _rope_theta(settings: Settings) -> float:
    """Base of the rotary angles; older configs hold it at the top, newer ones inside `rope_parameters`."""
    for key in ("rope_scaling", "rope_parameters"):
        section = settings.values.get(key)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise settings.wrong(key, "an object or null")
        kind = section.get("rope_type", section.get("type", "default"))
        if kind != "default":
            raise CheckpointError(f'{settings.path}: {key} of type "{kind}" is not supported, only "default" is')
        if "rope_theta" in section and "rope_theta" not in settings.values:
            return Settings(settings.path, section).number("rope_theta")
    return settings.number("rope_theta")


def read_config(settings: Settings) -> BackboneConfig:
    """Sizes of the backbone.

    Raises:
        CheckpointError: if a key is missing or invalid, or a feature is not supported.
    """
    settings.must_be("hidden_act", "silu", default="silu")
    settings.must_be("use_mrope", False, None, default=False)
    if settings.values.get("sliding_window") is not None:  # a length without the switch is inert, and published
        settings.must_be("use_sliding_window", False, None, default=False)
    own = own_settings(settings)
    width, num_heads = settings.count("hidden_size"), settings.count("num_attention_heads")
    settings.must_be("head_dim", None, width // num_heads, default=None)
    return BackboneConfig(
        vocab_size=settings.count("vocab_size"),
        width=width,
        num_layers=settings.count("num_hidden_layers"),
        num_heads=num_heads,
        num_key_heads=settings.count("num_key_value_heads", num_heads),
        feed_width=settings.count("intermediate_size"),
        rope_theta=_rope_theta(settings),
        norm_epsilon=settings.number("rms_norm_eps", 1e-6),
        qkv_bias=settings.flag("attention_bias", True),
        tied=settings.flag("tie_word_embeddings", False),
        max_length=settings.count("max_position_embeddings"),
        attention=own.values.get("attention", "bidirectional"),
        block_length=own.count("block_length", 32),
    )


def read_facts(settings: Settings, config: BackboneConfig, text: Text) -> ModelFacts:
    """The row to the left speaks for a slot; an answer ends with end of text or end of turn."""
    return gather_facts(settings, config, text, family="dream", shift=1, end_tokens=("<|endoftext|>", "<|im_end|>"))


DREAM = Family("dream", read_config, read_facts, tensor_names)
