"""What a checkpoint is and what it costs, without loading its weights where that can be avoided."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from unmask.models.checkpoints import LoadedModel, adapter_on, find_folder, match_tensors, open_folder
from unmask.models.checkpoints.adapters import StoredAdapter
from unmask.models.checkpoints.reading import DTYPES, empty_backbone, read_headers
from unmask.models.config import BackboneConfig
from unmask.models.facts import ModelFacts
from unmask.models.text import Text

LENGTH = 1024  # slots for which a description estimates memory, or the trained context if that is shorter


def count_parameters(config: BackboneConfig) -> int:
    """Number of weights, a tied head counted once."""
    return sum(parameter.numel() for parameter in empty_backbone(config).parameters())


def estimate_memory(
    config: BackboneConfig, length: int, batch: int, dtype: torch.dtype, *, cache: bool, asked: int | None = None
) -> dict[str, int]:
    """Peak memory of one forward pass without gradients, in bytes.

    An upper estimate for the plain pass over whole rows; a cache adds its store and lowers the rest. The allocator,
    the CUDA context and what a decoder remembers come on top.

    Args:
        config: the backbone's sizes.
        length: canvas slots per row, prompt and answer together.
        batch: rows.
        dtype: of weights and activations.
        cache: whether keys and values of all slots are kept.
        asked: slots per row that get logits; None means all of them.

    Returns:
        "weights", "kv", "logits", "activations", and their sum "total".
    """
    size, slots = dtype.itemsize, batch * length
    key_width = config.num_key_heads * config.head_size
    # rotating queries in float32 against the feed-forward part; both next to the residual stream and its normed copy
    attending = slots * (config.width + 2 * key_width) * size + 4 * slots * config.width * 4
    feeding = 3 * slots * config.feed_width * size
    rotary = 3 * slots * config.head_size * 4
    mask = slots * length * (1 + size)  # boolean, and the additive form that kernels turn it into
    parts = {
        "weights": count_parameters(config) * size,
        "kv": 2 * config.num_layers * slots * key_width * size if cache else 0,
        "logits": batch * (length if asked is None else asked) * config.vocab_size * size,
        "activations": 2 * slots * config.width * size + max(attending, feeding) + rotary + mask,
    }
    return parts | {"total": sum(parts.values())}


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """All facts about a loaded model, ready for JSON."""
    return _summary(
        loaded.source,
        loaded.folder,
        loaded.backbone.config,
        loaded.facts,
        loaded.text,
        loaded.adapter,
        dtype=loaded.dtype,
    ) | {"device": str(loaded.device)}


def inspect_checkpoint(name_or_path: str | Path, adapter: str | Path | None = None) -> dict[str, Any]:
    """The facts that `describe` gives, and "stored", from the config, the tokenizer and the headers of the weights.

    Reads no weights, and downloads none of a hub model but those of an adapter; "stored" is None where the weights are
    not on this machine.

    Args:
        name_or_path: as for `load_checkpoint`.
        adapter: a LoRA adapter on top of it.

    Raises:
        CheckpointError: as `load_checkpoint` does, for everything that can be seen without weights.
    """
    folder = find_folder(name_or_path, weights=False)
    opened = open_folder(folder, adapter=adapter_on(name_or_path, adapter))
    stored: dict[str, Any] | None = None
    dtype = torch.float32
    # a hub model's index is fetched with the JSON files, so it says nothing about the weights
    local = Path(name_or_path).expanduser().is_dir() or str(name_or_path).startswith("builtin")
    if local or any(folder.glob("*.safetensors")):
        headers = read_headers(folder)
        _, names = match_tensors(opened, headers)
        largest = max((headers[theirs] for theirs in names.values()), key=lambda header: header.size)
        dtype = DTYPES[largest.dtype]
        sizes: Counter[str] = Counter()
        for header in headers.values():
            sizes[header.dtype] += header.size
        files = {header.file for header in headers.values()}
        stored = {
            "files": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "parameters_by_dtype": dict(sizes),
        }
    else:
        stated = opened.settings.values.get("torch_dtype", opened.settings.values.get("dtype"))
        dtype = next((known for known in DTYPES.values() if str(known) == f"torch.{stated}"), dtype)
    summary = _summary(str(name_or_path), folder, opened.config, opened.facts, opened.text, opened.adapter, dtype=dtype)
    return summary | {"stored": stored}


def _summary(
    source: str,
    folder: Path,
    config: BackboneConfig,
    facts: ModelFacts,
    text: Text,
    adapter: StoredAdapter | None,
    *,
    dtype: torch.dtype,
) -> dict[str, Any]:
    length = min(LENGTH, facts.max_length)
    begin = text.named.get("bos_token")
    return {
        "source": source,
        "folder": str(folder),
        "family": facts.family,
        "parameters": count_parameters(config),
        "dtype": str(dtype).removeprefix("torch."),
        "sizes": {
            "layers": config.num_layers,
            "width": config.width,
            "heads": config.num_heads,
            "key_heads": config.num_key_heads,
            "head_size": config.head_size,
            "feed_width": config.feed_width,
            "vocabulary": config.vocab_size,
            "tied_head": config.tied,
        },
        "attention": facts.attention,
        "block_length": facts.block_length if facts.attention == "block_causal" else None,
        "max_length": facts.max_length,
        "shift": facts.shift,
        "mask": _token(text, facts.mask_id),
        "ends": [_token(text, token) for token in facts.end_ids],
        "banned": [_token(text, token) for token in facts.banned_ids],
        "begin": None if begin is None else {"id": text.id_of(begin), "token": begin},
        "tokenizer_size": text.vocab_size,
        "chat_template": text.has_template,
        "adapter": None if adapter is None else adapter.describe(),
        "memory": {
            "length": length,
            "batch": 1,
            "bytes": estimate_memory(config, length, 1, dtype, cache=True),
        },
    }


def _token(text: Text, token: int) -> dict[str, Any]:
    return {"id": token, "token": text.token_text(token)}
