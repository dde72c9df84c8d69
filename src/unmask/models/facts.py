"""What a decoder may know about a checkpoint, and nothing about its weights.

Token ids come from the checkpoint's own config and tokenizer (see `models.checkpoints`); no other file of the package
holds a literal token id.
"""

from dataclasses import dataclass
from typing import Literal

from unmask.models.config import ATTENTION_PATTERNS, AttentionPattern


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Ids, alignment, attention pattern and context of a model.

    `banned_ids` get no probability at all. By default that is the mask id alone, because a model that predicts it can
    stall a decoder for ever; the published decoders ban nothing, so comparisons with them set it to `()`.

    Raises:
        ValueError: if an id is outside the vocabulary, ids clash, or a length or the shift is out of range.
    """

    mask_id: int
    end_ids: tuple[int, ...]  # every id that ends an answer: end of text, end of turn
    banned_ids: tuple[int, ...]  # never predicted
    vocab_size: int  # columns of the logits, padding rows of the embedding included
    shift: int  # 0: a row speaks for its own slot (LLaDA); 1: its left neighbour does (Dream)
    attention: AttentionPattern
    block_length: int  # slots; read for block-causal attention only
    family: str  # "llada", "dream"
    max_length: int  # trained context, tokens
    block_alignment: Literal["prompt", "absolute"] = (
        "prompt"  # blocks are counted from the prompt's end, or from slot 0
    )

    def __post_init__(self) -> None:
        for name, ids in (("mask_id", (self.mask_id,)), ("end_ids", self.end_ids), ("banned_ids", self.banned_ids)):
            for token in ids:
                if not 0 <= token < self.vocab_size:
                    raise ValueError(f"{name} must be in the vocabulary: got {token}, allowed 0..{self.vocab_size - 1}")
        if self.mask_id in self.end_ids:
            raise ValueError(f"the mask id cannot end an answer: got mask_id={self.mask_id}, end_ids={self.end_ids}")
        if self.shift not in (0, 1):
            raise ValueError(f"shift must be 0 or 1: got {self.shift}")
        if self.attention not in ATTENTION_PATTERNS:
            allowed = ", ".join(f'"{pattern}"' for pattern in ATTENTION_PATTERNS)
            raise ValueError(f'attention must be one of {allowed}: got "{self.attention}"')
        if self.attention == "causal" and self.shift != 1:
            raise ValueError(f"a causal model's rows speak for the next slot: shift must be 1, got {self.shift}")
        if self.block_alignment not in ("prompt", "absolute"):
            raise ValueError(f'block_alignment must be "prompt" or "absolute": got "{self.block_alignment}"')
        for name, length in (("block_length", self.block_length), ("max_length", self.max_length)):
            if length < 1:
                raise ValueError(f"{name} must be at least 1: got {length}")
