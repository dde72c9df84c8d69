"""A backbone that answers the loop's question: what belongs in these slots?

The only place that knows which row speaks about a target (the plan names it), that builds attention masks from
visibility, and that rules the mask token out.

Shape letters: b batch rows, r computed rows, s canvas plus extra slots, a asked targets, v vocabulary.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.caches.base import CachePolicy, KVStore
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.sampling import ban
from unmask.core.state import DenoisingState
from unmask.models.attention import block_causal
from unmask.models.backbone import Backbone, Block, Rotary
from unmask.models.facts import ModelFacts


class BackbonePredictor:
    """A mask predictor made of a backbone and the facts of its checkpoint."""

    passes = 1

    def __init__(self, backbone: Backbone, facts: ModelFacts) -> None:
        self.backbone = backbone.eval()
        self.facts = facts

    @property
    def device(self) -> torch.device:
        return self.backbone.embedding.weight.device

    def open_store(self, state: DenoisingState, cache: CachePolicy) -> KVStore:
        """A fresh store of keys and values for these rows."""
        return cache.open_store(state)

    def with_facts(self, facts: ModelFacts) -> "BackbonePredictor":
        """The same weights under other facts (another block length, say)."""
        return BackbonePredictor(self.backbone, facts)

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: CachePolicy, store: KVStore) -> Float[Tensor, "b a v"]:
        """Logits about the token at every asked slot, in the backbone's dtype; banned tokens are at -inf."""
        tokens = canvas.tokens if work.everything else canvas.tokens.gather(1, work.rows)
        positions = canvas.positions if work.everything else canvas.positions.gather(1, work.rows)

        def run_block(block: Block, layer: int, x: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
            return cache.run_block(block, layer, x, rotary, mask, work, store)

        hidden = self.backbone.run(tokens, positions, self._mask(canvas, work, store, positions), run_block)
        spoken = hidden.gather(1, work.speakers[..., None].expand(-1, -1, hidden.shape[-1]))
        return ban(self.backbone.logits(spoken), self.facts.banned_ids)

    def _mask(
        self, canvas: Canvas, work: ForwardPlan, store: KVStore, positions: Int[Tensor, "b r"]
    ) -> Bool[Tensor, "b r s"] | None:
        """Which keys each computed row may see; None when every row sees every key."""
        mask = work.visible[:, None, :].expand(-1, positions.shape[1], -1)
        restricted = not bool(work.visible.all())
        if canvas.attends is not None:
            size = canvas.tokens.shape[1]
            mask = mask & canvas.attends.gather(1, work.rows[..., None].expand(-1, -1, size))
            restricted = True
        if self.facts.attention != "bidirectional":
            mask = mask & block_causal(self._blocks(positions, store), self._blocks(canvas.positions, store))
            restricted = True
        return mask if restricted else None

    def _blocks(self, positions: Int[Tensor, "b n"], store: KVStore) -> Int[Tensor, "b n"]:
        """Block of every position: the whole prompt is -1 and blocks follow it, or they are counted from position 0; of
        a causal model every slot is one."""
        if self.facts.attention == "causal":
            return positions
        if self.facts.block_alignment == "absolute":
            return positions.div(self.facts.block_length, rounding_mode="floor")
        behind = positions - store.prompt_length[:, None]
        return behind.div(self.facts.block_length, rounding_mode="floor").clamp_min(-1)
