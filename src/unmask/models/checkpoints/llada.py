"""LLaDA-8B and LLaDA-1.5: config keys, tensor names, facts.

Source: config.json and the tensor names of the published checkpoints (Nie et al., Large Language Diffusion Models,
arXiv 2502.09992). Names that mislead: `ff_proj` is the gate that goes through silu, `up_proj` the factor it multiplies,
`ff_out` inside a block the way down, and `ff_out` outside the blocks the output head.
"""

from unmask.models.checkpoints.family import Family, gather_facts, own_settings
from unmask.models.checkpoints.reading import Settings
from unmask.models.config import BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text

_BLOCK = {
    "attention_norm": "attn_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "attention_out": "attn_out",
    "feed_norm": "ff_norm",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}


def tensor_names(config: BackboneConfig) -> dict[str, str]:
    """Our tensor names -> the names in published LLaDA checkpoints; both ways round for reading and export."""
    root = "model.transformer"
    names = {"embedding.weight": f"{root}.wte.weight", "norm.weight": f"{root}.ln_f.weight"}
    if not config.tied:
        names["head.weight"] = f"{root}.ff_out.weight"
    for layer in range(config.num_layers):
        for ours, theirs in _BLOCK.items():
            names[f"blocks.{layer}.{ours}.weight"] = f"{root}.blocks.{layer}.{theirs}.weight"
    return names


def _refuse_unsupported(settings: Settings) -> None:
    """Switches of the config that would change the arithmetic."""
    settings.must_be("block_type", "llama", default="llama")
    settings.must_be("layer_norm_type", "rms", default="rms")
    settings.must_be("activation_type", "silu", default="silu")
    settings.must_be("rope", True, default=True)
    settings.must_be("layer_norm_with_affine", True, default=True)
    settings.must_be("block_group_size", 1, default=1)
    settings.must_be("clip_qkv", None, default=None)
    for switch in (
        "alibi",
        "attention_layer_norm",
        "bias_for_layer_norm",
        "include_bias",
        "include_qkv_bias",
        "input_emb_norm",
        "scale_logits",
    ):
        settings.must_be(switch, False, None, default=False)


def read_config(settings: Settings) -> BackboneConfig:
    """Sizes of the backbone.

    `embedding_size` may exceed `vocab_size`: the extra rows pad the table to a round number. They are kept, because
    the published models compute logits for them too.

    Raises:
        CheckpointError: if a key is missing or invalid, or a feature is not supported.
    """
    _refuse_unsupported(settings)
    own = own_settings(settings)
    width, num_heads = settings.count("d_model"), settings.count("n_heads")
    vocab_size = settings.count("vocab_size")
    shared_heads = 1 if settings.flag("multi_query_attention", False) else num_heads
    rows = settings.count("embedding_size", vocab_size)
    if rows < vocab_size:
        raise settings.wrong("embedding_size", f"at least vocab_size ({vocab_size})")
    return BackboneConfig(
        vocab_size=rows,
        width=width,
        num_layers=settings.count("n_layers"),
        num_heads=num_heads,
        num_key_heads=settings.count("n_kv_heads", shared_heads),
        feed_width=settings.count("mlp_hidden_size", settings.count("mlp_ratio", 4) * width),
        rope_theta=settings.number("rope_theta"),
        norm_epsilon=settings.number("rms_norm_eps", 1e-5),
        tied=settings.flag("weight_tying", False),
        max_length=settings.count("max_sequence_length"),
        attention=own.values.get("attention", "bidirectional"),
        block_length=own.count("block_length", 32),
    )


def read_facts(settings: Settings, config: BackboneConfig, text: Text) -> ModelFacts:
    """A row speaks for its own slot; an answer ends with end of text or end of turn."""
    return gather_facts(settings, config, text, family="llada", shift=0, end_tokens=("<|endoftext|>", "<|eot_id|>"))


LLADA = Family("llada", read_config, read_facts, tensor_names)
