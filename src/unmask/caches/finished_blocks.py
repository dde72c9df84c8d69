"""The cache of block diffusion: a block's keys and values are kept once they can no longer change.

Source: Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), section 3.3; the same policy serves SDAR and LLaDA2,
with the pass that stores a clean block merged into the first step of the next one. Deviates: with a shifted model
(Dream) the row left of the first open slot is recomputed, where the released code keeps that row's logits.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.caches.base import CachePolicy, Memory
from unmask.core.state import DenoisingState
from unmask.core.window import Window


@dataclass(frozen=True, slots=True)
class FinishedBlocks(CachePolicy):
    """Freeze every block that was complete, like all blocks before it, when the previous forward pass began.

    That pass has run it with its final tokens (the prompt has been complete since before the first one), and on a
    block-causal model whose blocks are those of the schedule nothing that comes later reaches it: the cache is exact. A
    complete block behind an incomplete one stays computed. On a bidirectional model the stored values are approximate.
    """

    exact: ClassVar[bool] = True
    blockwise: ClassVar[bool] = True

    def frozen(self, state: DenoisingState, window: Window, memory: Memory) -> Bool[Tensor, "b l"] | None:
        if window.blocks is None:
            return None
        changed = state.committed_at >= state.step[:, None] - 1  # by the previous pass; at the first, whatever is given
        unsettled = torch.where(state.masked | changed, window.blocks, state.num_slots)
        return window.blocks < unsettled.amin(-1, keepdim=True)
