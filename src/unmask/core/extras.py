"""Extra slots: rows behind the answer that ask the model another question about a slot.

A method that wants a second opinion (WINO's shadows, LEAP's candidates and replicas) appends slots that repeat the
position of an answer slot, and says what each of them sees. Answer slots never see extra ones, so their logits are
those of the plain canvas. This is the one place that lays such slots out, and the one that knows what a shifted model
(Dream) needs: there the row left of a slot speaks for it, so the question is put by a copy of its left neighbour.

Shape letters: b batch rows, l canvas slots, e extra slots, s canvas plus extra slots, n questions.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.core.canvas import Canvas, pack
from unmask.core.state import DenoisingState

KEY_ONLY = -1  # in `Canvas.targets`: an extra slot that is seen but not asked


@dataclass(frozen=True, slots=True)
class Extras:
    """Extra slots of one kind, to be laid behind the answer in the order given.

    `sees` is about answer slots only; what extra slots see of each other is decided by `attach`.
    """

    tokens: Int[Tensor, "b e"]
    positions: Int[Tensor, "b e"]  # the slot whose place each one takes
    exists: Bool[Tensor, "b e"]  # False on padding
    targets: Int[Tensor, "b e"]  # the slot each one speaks about, KEY_ONLY if none
    sees: Bool[Tensor, "b e l"]

    @property
    def count(self) -> int:
        return self.tokens.shape[1]

    def join(self, other: "Extras") -> "Extras":
        """These, then the others."""
        names = ("tokens", "positions", "exists", "targets", "sees")
        return Extras(*(torch.cat((getattr(self, name), getattr(other, name)), dim=1) for name in names))


def attach(tokens: Int[Tensor, "b l"], extras: Extras, among: Bool[Tensor, "b e e"]) -> Canvas:
    """A canvas with extra slots behind it.

    Args:
        tokens: what the answer slots show.
        extras: the extra slots.
        among: which extra slot (second dimension) sees which other one (third); each sees itself in any case.

    Returns:
        Canvas whose answer slots see each other and no extra slot. Padding sees and is seen by nobody.
    """
    (rows, slots), count = tokens.shape, extras.count
    device = tokens.device
    itself = torch.eye(count, dtype=torch.bool, device=device)
    mutual = (among | itself) & extras.exists[:, :, None] & extras.exists[:, None, :]
    attends = torch.zeros(rows, slots + count, slots + count, dtype=torch.bool, device=device)
    attends[:, :slots, :slots] = True
    attends[:, slots:, :slots] = extras.sees & extras.exists[:, :, None]
    attends[:, slots:, slots:] = mutual
    places = torch.arange(slots, device=device).expand(rows, -1)
    return Canvas(
        torch.cat((tokens, extras.tokens), dim=1),
        torch.cat((places, extras.positions), dim=1),
        attends,
        extra=count,
        targets=torch.where(extras.exists, extras.targets, KEY_ONLY),
        extra_exists=extras.exists,
    )


def beside(one: Canvas, other: Canvas) -> Canvas:
    """One canvas with the extra slots of two, of which neither kind sees the other.

    Args:
        one, other: canvases that show the same answer; the extra slots of the first come first.
    """
    if not one.extra or not other.extra:
        return one if one.extra else other
    slots = one.num_answer_slots
    answer = one.tokens[:, :slots]
    assert torch.equal(answer, other.tokens[:, :slots]), "both show the same answer"
    first, second = _extras_of(one), _extras_of(other)
    among = torch.zeros(len(answer), *2 * [first.count + second.count], dtype=torch.bool, device=answer.device)
    assert one.attends is not None and other.attends is not None, "extra slots come with a mask"
    among[:, : first.count, : first.count] = one.attends[:, slots:, slots:]
    among[:, first.count :, first.count :] = other.attends[:, slots:, slots:]
    return attach(answer, first.join(second), among)


def _extras_of(canvas: Canvas) -> Extras:
    """The extra slots that `attach` laid behind an answer."""
    slots = canvas.num_answer_slots
    assert canvas.attends is not None and canvas.targets is not None and canvas.extra_exists is not None
    sees = canvas.attends[:, slots:, :slots]
    return Extras(canvas.tokens[:, slots:], canvas.positions[:, slots:], canvas.extra_exists, canvas.targets, sees)


def masks(state: DenoisingState, about: Bool[Tensor, "b l"], sees: Bool[Tensor, "b l l"] | None = None) -> Extras:
    """One extra mask per slot of `about`, at its position, and asked about it when rows speak for themselves.

    Args:
        about: slots to ask about once more.
        sees: answer slots visible to the extra row of each slot; None = all but the slot itself.

    Returns:
        Extras; with shift 1 they are keys only, see `speakers`.
    """
    slots, exists, shown = _placed(state, about, sees)
    targets = slots if state.shift == 0 else torch.full_like(slots, KEY_ONLY)
    return Extras(torch.full_like(slots, state.mask_id), slots, exists, targets, shown)


def speakers(state: DenoisingState, about: Bool[Tensor, "b l"], sees: Bool[Tensor, "b l l"] | None = None) -> Extras:
    """For a shifted model: per slot of `about` a copy of its left neighbour, asked about the slot.

    It takes the neighbour's place (so it does not see the neighbour itself) and does not see the slot it speaks about
    either; give it a mask at that slot to see, or whatever else should stand there. Slot 0 has no neighbour: a mask at
    position 0 speaks for it.

    Args:
        about, sees: as in `masks`.
    """
    slots, exists, shown = _placed(state, about, sees)
    left = (slots - 1).clamp_min(0)
    tokens = torch.where(slots > 0, state.tokens.gather(1, left), state.mask_id)
    return Extras(tokens, left, exists, slots, shown & (state.slots[:, None] != left[..., None]))


def replicas(state: DenoisingState, about: Bool[Tensor, "b l"], sees: Bool[Tensor, "b l l"]) -> Extras:
    """Per slot of `about` a copy of the row that speaks about it, which is asked about it once more.

    With everything to see it says what the row itself says. A copy never sees the row it is a copy of; that of a
    shifted model does see the slot it is asked about, as the row itself does.

    Args:
        about, sees: as in `masks`.
    """
    own = torch.eye(state.num_slots, dtype=torch.bool, device=sees.device)
    return speakers(state, about, sees | own) if state.shift else masks(state, about, sees & ~own)


def _placed(
    state: DenoisingState, about: Bool[Tensor, "b l"], sees: Bool[Tensor, "b l l"] | None
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"], Bool[Tensor, "b n l"]]:
    """The slots of `about`, packed: which they are, which are no padding, and what the extra row of each sees."""
    slots, count = pack(about)
    exists = torch.arange(slots.shape[1], device=slots.device)[None] < count[:, None]
    if sees is None:
        return slots, exists, state.slots[:, None] != slots[..., None]
    return slots, exists, sees.gather(1, slots[..., None].expand(-1, -1, sees.shape[2]))
