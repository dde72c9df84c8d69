"""The shape of a backbone: one dataclass for every checkpoint family."""

from dataclasses import dataclass
from typing import Literal, get_args

AttentionPattern = Literal["bidirectional", "block_causal", "causal"]
ATTENTION_PATTERNS: tuple[AttentionPattern, ...] = get_args(AttentionPattern)


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """Sizes and switches of the transformer.

    LLaDA, LLaDA-1.5 and the built-in model use no biases and as many key heads as query heads; Dream and DiffuCoder
    are Qwen2-shaped: biases on q, k, v and grouped key heads.
    """

    vocab_size: int
    width: int  # hidden size
    num_layers: int
    num_heads: int
    num_key_heads: int  # < num_heads: grouped-query attention
    feed_width: int  # inner size of the SwiGLU
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    qkv_bias: bool = False
    tied: bool = False  # output head is the embedding table
    normed_embedding: bool = False  # training form of the built-in model: input rows are RMS-normed; baked at export
    max_length: int = 4096  # trained context, tokens
    attention: AttentionPattern = "bidirectional"
    block_length: int = 32  # only for block-causal attention

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(f"num_heads must divide width: got width={self.width}, num_heads={self.num_heads}")
        if self.num_heads % self.num_key_heads:
            raise ValueError(
                f"num_key_heads must divide num_heads: got num_heads={self.num_heads}, "
                f"num_key_heads={self.num_key_heads}"
            )

    @property
    def head_size(self) -> int:
        return self.width // self.num_heads
