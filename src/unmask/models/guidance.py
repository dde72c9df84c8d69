"""Classifier-free guidance: a predictor that wraps a predictor.

Source: Nie et al., LLaDA (arXiv 2502.09992), unsupervised guidance. Deviates: nowhere; the released sampler also fails
without an attention mask, which this one has no need of.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import Facts, MaskPredictor
from unmask.core.state import DenoisingState
from unmask.errors import RequestError


@dataclass(frozen=True, slots=True)
class GuidedStore:
    """The stores of both passes, and the slots that the unconditional pass hides."""

    conditional: Any
    unconditional: Any
    hidden: Bool[Tensor, "b l"]
    mask_id: int

    def known(self, shown: Int[Tensor, "b l"]) -> Bool[Tensor, "b l"] | None:
        return self.conditional.known(shown)  # type: ignore[no-any-return]

    def computed(self, work: ForwardPlan) -> Int[Tensor, " b"]:
        return self.conditional.computed(work)  # type: ignore[no-any-return]

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        self.conditional.note(canvas, work)
        self.unconditional.note(self.blind(canvas), work)

    def blind(self, canvas: Canvas) -> Canvas:
        """The canvas with everything that was given masked."""
        places = canvas.positions[:, canvas.num_answer_slots :].clamp_max(canvas.num_answer_slots)
        copies = functional.pad(self.hidden, (0, 1)).gather(1, places)  # an extra slot may repeat a given one
        hidden = torch.cat((self.hidden, copies), dim=1)
        return replace(canvas, tokens=torch.where(hidden, self.mask_id, canvas.tokens))


class Guided:
    """Strengthen what the prompt says: logits = u + (scale + 1) * (c - u), u without the given tokens.

    Args:
        inner: the predictor asked twice.
        scale: guidance weight w >= 0; 0 equals no guidance.
    """

    def __init__(self, inner: MaskPredictor, scale: float) -> None:
        if not 0.0 <= scale < float("inf"):
            raise RequestError(f"guidance must be a number from 0 up: got {scale}")
        self.inner, self.scale = inner, scale

    @property
    def facts(self) -> Facts:
        return self.inner.facts

    @property
    def passes(self) -> int:
        return 2 * self.inner.passes

    def with_facts(self, facts: Any) -> "Guided":
        """The same weights under other facts."""
        return Guided(self.inner.with_facts(facts), self.scale)  # type: ignore[attr-defined]

    def open_store(self, state: DenoisingState, cache: Any) -> GuidedStore:
        first, second = (self.inner.open_store(state, cache) for _ in range(2))
        return GuidedStore(first, second, state.given, self.facts.mask_id)

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: GuidedStore) -> Float[Tensor, "b a v"]:
        with_prompt = self.inner(canvas, work, cache, store.conditional)
        without = self.inner(store.blind(canvas), work, cache, store.unconditional)
        guided = without + (self.scale + 1.0) * (with_prompt - without)
        return torch.where(with_prompt.isneginf(), float("-inf"), guided)  # banned tokens stay banned
