"""From a name to a `Model`."""

from pathlib import Path

from unmask.generation import Model
from unmask.models.checkpoints import load_checkpoint
from unmask.models.config import AttentionPattern
from unmask.models.predictor import BackbonePredictor


def load(
    name_or_path: str | Path = "builtin",
    *,
    device: str = "auto",
    dtype: str = "auto",
    attention: AttentionPattern | None = None,
    block_length: int | None = None,
    adapter: str | Path | None = None,
    merge: bool = True,
) -> Model:
    """Load a checkpoint.

    Args:
        name_or_path: "builtin" or a variant of it such as "builtin:d2f" (see `unmask list models`), a local folder, or
            a hub id such as "GSAI-ML/LLaDA-8B-Instruct".
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1", "mps".
        dtype: "auto", "float32", "bfloat16", "float16".
        attention: override the pattern of the checkpoint or its adapter, "bidirectional", "block_causal" or "causal".
        block_length: block of block-causal attention, slots.
        adapter: a LoRA adapter in peft's format on top of it, a local folder or a hub id.
        merge: add the adapter to the weights, for speed; False leaves it beside them (see `models.adapters`).

    Raises:
        CheckpointError: not found, unreadable, of an unknown family, or with tensors that do not fit; or an adapter
            that is so.
    """
    loaded = load_checkpoint(
        str(name_or_path),
        device=device,
        dtype=dtype,
        attention=attention,
        block_length=block_length,
        adapter=adapter,
        merge=merge,
    )
    predictor = BackbonePredictor(loaded.backbone, loaded.facts)
    added = None if adapter is None else str(adapter)  # that of a variant is part of its name
    return Model(predictor, loaded.facts, loaded.text, loaded.source, predictor.device, added)
