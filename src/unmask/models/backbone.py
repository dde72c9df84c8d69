"""The only transformer of the project: pre-norm, RMSNorm, rotary positions, SwiGLU.

It knows rows, positions and masks. It has never heard of prompts, decoders, schedules or the meaning of a cache; a
cache policy may take over a block through `run_block`, the one seam, and gets the block's public pieces: `project`
and `values`, `attend`, `feed`.

Shape letters: b batch rows, r rows computed, s slots that serve as keys, h heads, g key heads, d head size, v tokens.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.models.attention import attention, rotary_table, rotate
from unmask.models.config import BackboneConfig

Rotary = tuple[Tensor, Tensor]


@runtime_checkable
class BlockRunner(Protocol):
    """What the backbone calls once per layer (see `caches.base.CachePolicy.run_block`)."""

    def __call__(self, block: "Block", layer: int, x: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor: ...


class Block(nn.Module):
    """One transformer layer, in pieces that each bring their own norm."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads, self.head_size = config.num_heads, config.num_key_heads, config.head_size
        inner, key_width = config.feed_width, config.num_key_heads * config.head_size
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.query = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.key = nn.Linear(config.width, key_width, bias=config.qkv_bias)
        self.value = nn.Linear(config.width, key_width, bias=config.qkv_bias)
        self.attention_out = nn.Linear(config.width, config.width, bias=False)
        self.feed_norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        self.gate = nn.Linear(config.width, inner, bias=False)
        self.up = nn.Linear(config.width, inner, bias=False)
        self.down = nn.Linear(inner, config.width, bias=False)

    def project(
        self, x: Float[Tensor, "b r c"], rotary: Rotary
    ) -> tuple[Float[Tensor, "b h r d"], Float[Tensor, "b g r d"], Float[Tensor, "b g r d"]]:
        """Queries, keys (both rotated) and values of the given rows."""
        batch, rows, _ = x.shape
        normed = self.attention_norm(x)
        q = self.query(normed).view(batch, rows, self.num_heads, self.head_size).transpose(1, 2)
        k = self.key(normed).view(batch, rows, self.num_key_heads, self.head_size).transpose(1, 2)
        v = self.value(normed).view(batch, rows, self.num_key_heads, self.head_size).transpose(1, 2)
        return rotate(q, *rotary), rotate(k, *rotary), v

    def values(self, x: Float[Tensor, "b r c"]) -> Float[Tensor, "b g r d"]:
        """The third part of `project` alone: the cheapest sign of how far a row has moved."""
        return self.value(self.attention_norm(x)).unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # type: ignore[no-any-return]

    def attend(
        self,
        q: Float[Tensor, "b h r d"],
        k: Float[Tensor, "b g s d"],
        v: Float[Tensor, "b g s d"],
        mask: Bool[Tensor, "b r s"] | None,
    ) -> Float[Tensor, "b r c"]:
        """What attention adds to the residual stream."""
        mixed = attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return self.attention_out(mixed)  # type: ignore[no-any-return]

    def feed(self, x: Float[Tensor, "b r c"]) -> Float[Tensor, "b r c"]:
        """What the feed-forward part adds to the residual stream."""
        normed = self.feed_norm(x)
        return self.down(functional.silu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """All rows, keys of the same rows."""
        q, k, v = self.project(x, rotary)
        x = x + self.attend(q, k, v, mask)
        return x + self.feed(x)


class Backbone(nn.Module):
    """Embedding, blocks, final norm, output head."""

    recompute = False  # gradient checkpointing in `hidden`: a third more time, memory for one block instead of all

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_epsilon)
        if not config.tied:
            self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    @property
    def head_weight(self) -> Float[Tensor, "v c"]:
        return self.embedding.weight if self.config.tied else self.head.weight

    def embed(self, tokens: Int[Tensor, "b r"]) -> Float[Tensor, "b r c"]:
        x = self.embedding(tokens)
        if self.config.normed_embedding:
            x = functional.rms_norm(x, (self.config.width,), eps=self.config.norm_epsilon)
        return x  # type: ignore[no-any-return]

    def rotary(self, positions: Int[Tensor, "b r"]) -> Rotary:
        return rotary_table(positions, self.config.head_size, self.config.rope_theta)

    def logits(self, hidden: Float[Tensor, "*n c"]) -> Float[Tensor, "*n v"]:
        """Vocabulary scores of final hidden states; call it with the rows somebody asked about only."""
        if self.config.tied:
            return functional.linear(hidden, self.embedding.weight)
        return self.head(hidden)  # type: ignore[no-any-return]

    def run(
        self,
        tokens: Int[Tensor, "b r"],
        positions: Int[Tensor, "b r"],
        mask: Bool[Tensor, "b r s"] | None,
        run_block: BlockRunner,
    ) -> Float[Tensor, "b r c"]:
        """Final hidden states of some rows; `run_block` decides what the other keys are."""
        x, rotary = self.embed(tokens), self.rotary(positions)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = run_block(block, layer, x, rotary, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def hidden(
        self,
        tokens: Int[Tensor, "b r"],
        positions: Int[Tensor, "b r"] | None = None,
        mask: Bool[Tensor, "b r r"] | None = None,
    ) -> Float[Tensor, "b r c"]:
        """Final hidden states of whole sequences, without any cache (training, scoring)."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x, rotary = self.embed(tokens), self.rotary(positions)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, rotary, mask, use_reentrant=False)
            else:
                x = block(x, rotary, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def forward(
        self,
        tokens: Int[Tensor, "b r"],
        positions: Int[Tensor, "b r"] | None = None,
        mask: Bool[Tensor, "b r r"] | None = None,
    ) -> Float[Tensor, "b r v"]:
        """Raw logits of every row (whether a row speaks about its own slot or the next one, the predictor knows)."""
        return self.logits(self.hidden(tokens, positions, mask))
