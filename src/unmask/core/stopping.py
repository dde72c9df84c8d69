"""When an answer is settled before every slot is decided.

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.errors import RequestError

FinishReason = Literal["stop", "length", "unfinished"]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The end-token policy. Safe by default: an end token is final only when everything to its left is committed.

    Modes: "tail" closes a row as soon as the committed run from its first answer slot holds an end token; "block" does
    so only when the open window is full; "none" decides every slot (what the published samplers do). A method that may
    revoke closes a row only when its window is full. Rows with given text right of the first hole (infilling) are never
    closed early.

    Source: shared rule of this project; LLaDA's and Fast-dLLM's samplers have none. `hold_end` is the sound form of
    LLaDA's `confidence_eos_eot_inf`, and works at every temperature.
    """

    mode: Literal["tail", "block", "none"] = "tail"
    hold_end: bool = False  # an end token may not be committed while a slot to its left is masked

    def __post_init__(self) -> None:
        if self.mode not in ("tail", "block", "none"):
            raise RequestError(f'stop must be "tail", "block" or "none": got "{self.mode}"')

    def tail(
        self, state: DenoisingState, window: Window, end_ids: tuple[int, ...], revokes: bool
    ) -> Bool[Tensor, "b l"]:
        """Masked slots that no longer matter, because the answer has ended to their left."""
        if self.mode == "none" or not end_ids:
            return torch.zeros_like(state.masked)
        ended = first_end(state, end_ids) < state.num_slots
        if self.mode == "block" or revokes:
            ended = ended & ~window.unfinished(state)
        return state.masked & (ended & ~state.infills)[:, None]

    def held(
        self, state: DenoisingState, window: Window, prediction: Prediction, end_ids: tuple[int, ...]
    ) -> Bool[Tensor, "b s"]:
        """Slots whose candidate is an end token although an open slot to their left is undecided."""
        early = torch.zeros_like(prediction.known)
        undecided = (state.masked & window.open).long()
        waiting = undecided.cumsum(-1) - undecided > 0
        early[:, : state.num_slots] = waiting & is_any(prediction.tokens[:, : state.num_slots], end_ids)
        return early


def first_end(state: DenoisingState, end_ids: tuple[int, ...]) -> Int[Tensor, " b"]:
    """Slot of the first end token of the answer with nothing masked before it; the canvas length if there is none."""
    settled = state.masked.cumsum(-1) == 0
    ends = is_any(state.tokens, end_ids) & state.answer & settled
    return torch.where(ends.any(-1), ends.to(torch.int8).argmax(-1), state.num_slots)


def settled(state: DenoisingState, window: Window, revokes: bool) -> Bool[Tensor, "b l"]:
    """The answer slots that will never change again: the committed run from the first one on.

    A method that may revoke settles a slot only when its window is full or has moved on.
    """
    run = state.answer & (state.masked.cumsum(-1) == 0)
    if not revokes:
        return run
    full = ~window.unfinished(state)[:, None]
    return run & (full | (state.slots < window.first[:, None]))


def is_any(tokens: Int[Tensor, "b l"], ids: tuple[int, ...]) -> Bool[Tensor, "b l"]:
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for token in ids:
        found = found | (tokens == token)
    return found
