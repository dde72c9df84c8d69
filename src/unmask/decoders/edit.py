"""Editing: a decided token gives way to another one that the model has come to be surer of.

Source: LLaDA2.1, as dllm's sampler for it decodes: a slot of the open block that is decided, and whose best token is
now another one of a confidence above a bound, gets this token at once; a full block has further passes until one edits
nothing, 16 at most.

Deviates: the rule is offered around any method that only commits, and editing works without the further passes, too;
they are the schedule's (`sequential(polish=True)`). Edits take the best token at every temperature, so that a block
comes to rest. If each of the further passes edits, one more that may not edit closes the block. Above a bound of 1
nothing is edited, and the block costs its one closing pass.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas
from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.compound import Compound, decision_of


@dataclass(frozen=True, slots=True)
class Edited:
    """What one step leaves to the next."""

    inner: Memory
    passes: Int[Tensor, " b"]  # passes over the open window since it was full


@dataclass(frozen=True, slots=True)
class Edit(Compound):
    """Decode with another method, and replace tokens of the open window that the model would now choose otherwise.

    LLaDA2.1 is `edit(dynamic(threshold=0.95))` on `sequential(block_length=32, align='absolute', polish=True)`.
    """

    revokes: ClassVar[bool] = True

    inner: Decoder  # the method that commits; it may not take tokens back
    threshold: float = 0.9  # confidence above which another token replaces the decided one; the bound itself fails
    passes: int = 16  # over a full window, at most that many may edit; 0 = edit only while slots are masked

    def __post_init__(self) -> None:
        if self.threshold != self.threshold:
            raise ValueError(f"threshold must be a number: got {self.threshold}")
        if self.passes < 0:
            raise ValueError(f"passes must be a number of forward passes from 0 up: got {self.passes}")

    @property
    def parts(self) -> tuple[Decoder]:
        return (self.inner,)

    def quarrel(self) -> str:
        if not self.inner.revokes:
            return ""
        return (
            f"Edit cannot hold {type(self.inner).__name__}: that takes tokens back, and together they might undo each "
            'other for ever. Use a method that only commits, such as "dynamic".'
        )

    def begin(self, state: DenoisingState) -> Edited:
        return Edited(self.inner.begin(state), torch.zeros_like(state.step))

    def view(self, state: DenoisingState, window: Window, memory: Edited) -> Canvas:
        return self.inner.view(state, window, memory.inner)

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        decided = functional.pad(window.open & ~state.masked, (0, canvas.extra))
        return self.inner.asks(state, window, canvas) | decided

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Edited
    ) -> tuple[Move, Edited]:
        move, inner = decision_of(self.inner, state, window, prediction, memory.inner)
        full = ~(window.open & state.masked).any(-1)
        passes = torch.where(full, memory.passes + 1, 0)
        tokens, chances = (best[:, : state.num_slots, 0] for best in prediction.likeliest(1))
        decided = window.open & ~state.masked & prediction.known[:, : state.num_slots]
        edit = decided & (tokens != state.tokens) & (chances > self.threshold) & (passes <= self.passes)[:, None]
        written, sure = torch.where(edit, tokens, move.tokens), torch.where(edit, chances, 0.0)
        move = replace(move, commit=move.commit | edit, tokens=written, revoke=edit, chances=sure)
        return move, Edited(inner, passes)
