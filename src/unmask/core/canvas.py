"""What the model is shown, and which rows of it have to be computed.

Shape letters: b batch rows, l canvas slots, e extra slots, s both, r computed rows, a asked targets.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.state import DenoisingState
from unmask.core.window import Window


@dataclass(frozen=True, slots=True)
class Canvas:
    """The tokens of one forward pass. Extra slots (shadows, replicas) stand behind the answer and outlive no step."""

    tokens: Int[Tensor, "b s"]
    positions: Int[Tensor, "b s"]  # rotary index of each slot
    attends: Bool[Tensor, "b s s"] | None = None  # query sees key; None = everything visible
    extra: int = 0  # trailing slots that are not part of the answer
    targets: Int[Tensor, "b e"] | None = None  # per extra slot: the slot it speaks about, -1 = it is only a key
    extra_exists: Bool[Tensor, "b e"] | None = None  # per extra slot: False on padding; None = no padding

    @property
    def num_answer_slots(self) -> int:
        return self.tokens.shape[1] - self.extra


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """The work of one forward pass."""

    rows: Int[Tensor, "b r"]  # slots whose hidden states are computed, padded by repeating one of them
    num_rows: Int[Tensor, " b"]  # how many of `rows` are no padding
    asked: Int[Tensor, "b a"]  # target slots that get logits, padded by repeating one of them
    num_asked: Int[Tensor, " b"]
    speakers: Int[Tensor, "b a"]  # index into `rows` of the row that speaks about each target
    visible: Bool[Tensor, "b s"]  # slots that serve as keys
    everything: bool  # rows are exactly the slots 0..s-1, in order


def plain_view(state: DenoisingState) -> Canvas:
    """The committed canvas as it is."""
    return Canvas(state.tokens, state.slots.expand_as(state.tokens))


def plan(
    canvas: Canvas,
    window: Window,
    asks: Bool[Tensor, "b s"],
    frozen: Bool[Tensor, "b s"] | None,
    shift: int,
) -> ForwardPlan:
    """Turn questions and frozen slots into rows.

    An asked slot is always recomputed; a cache may only save slots that nobody asked about. With shift 1 the row left
    of a target speaks for it, so that row is computed too (slot 0 speaks for itself). Extra slots speak for themselves
    at any shift: they have no neighbours, and whoever makes one gives it the token and position that do the speaking.

    Args:
        asks: targets that need logits; only visible ones, and with shift 1 also right neighbours of visible ones.
        frozen: slots whose stored K/V stand in; None = none, and everything is computed.
        shift: 0 when a row speaks for its own slot, 1 when it speaks for its right neighbour.
    """
    visible = functional.pad(window.visible, (0, canvas.extra), value=True)
    if canvas.extra_exists is not None:
        visible = torch.cat((window.visible, canvas.extra_exists), dim=1)
    asked, num_asked = pack(asks)
    speaking = torch.where(asked < canvas.num_answer_slots, (asked - shift).clamp_min(0), asked)
    whole = frozen is None and int(visible.sum(-1).max()) == visible.shape[1]
    if frozen is None and whole:
        rows = torch.arange(canvas.tokens.shape[1], device=asked.device).expand_as(canvas.tokens)
        return ForwardPlan(rows, visible.sum(-1), asked, num_asked, speaking, visible, everything=True)
    own = asks & visible if shift else asks  # the neighbour alone speaks for a slot that is not shown yet
    needed = visible | own if frozen is None else visible & ~frozen | own
    if shift:
        needed = needed | torch.zeros_like(needed).scatter(1, speaking, (num_asked > 0)[:, None].expand_as(speaking))
    rows, num_rows = pack(needed)
    place = (needed.cumsum(-1) - 1).clamp_min(0)  # rows are packed in order, so a slot's row is its rank
    return ForwardPlan(rows, num_rows, asked, num_asked, place.gather(1, speaking), visible, everything=False)


def pack(flags: Bool[Tensor, "b s"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, " b"]]:
    """Indices of the true slots per row, ascending, padded by repeating the first; and their number."""
    count = flags.sum(-1)
    width = max(int(count.max()), 1)
    order = torch.sort(~flags, dim=-1, stable=True).indices[:, :width]
    rank = torch.arange(width, device=flags.device)[None]
    return torch.where(rank < count[:, None], order, order[:, :1]), count
