"""What a decoding method is: a small immutable object that shows the model a canvas and answers with a move.

A method sees (b, l) tensors and may commit masked open slots. It does not know blocks, offsets, caches, batch mates,
model families, devices or who listens.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from unmask.core.canvas import Canvas, plain_view
from unmask.core.prediction import Prediction
from unmask.core.schedules import Schedule
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window

Memory = Any


class Decoder:
    """One decoding method; subclasses are frozen dataclasses whose fields are the method's hyperparameters.

    What a method remembers between steps is a value made by `begin` and handed back with each move; the object itself
    never changes, so one object serves any number of requests at once.
    """

    revokes: ClassVar[bool] = False  # may it take tokens back? (streaming and stopping ask)
    reshapes: ClassVar[bool] = False  # may view() add slots? (caches ask)
    overreaches: ClassVar[bool] = False  # may it commit visible slots outside the window? (Prophet does)
    drafts: ClassVar[bool] = False  # does it count on slots seeing guesses right of them? (block-causal models ask)
    schedule: ClassVar[type[Schedule] | None] = None  # set when the method has a kind of schedule of its own

    @property
    def idles(self) -> bool:
        """May a step commit nothing although masked slots are open? Only methods with a fixed number of steps."""
        return False

    @property
    def branches(self) -> int:
        """The most candidate canvases of a row; above 1, `fork` makes them and `decide` sees them all."""
        return 1

    @property
    def confined(self) -> bool:
        """Does it run on no other kind of schedule than its own?"""
        return self.schedule is not None

    @property
    def spreads(self) -> bool:
        """Does it spread a number of steps over windows? Then windows may not overlap."""
        return False

    @property
    def shows_plainly(self) -> bool:
        """Is the model shown the committed canvas as it is?"""
        return type(self).view is Decoder.view

    @property
    def clash(self) -> str:
        """Why the methods that this one is made of do not go together, and a way out; empty if they do."""
        return ""

    def begin(self, state: DenoisingState) -> Memory:
        """First memory of these rows: None, or a tree of tensors whose first dimension is the batch."""
        return None

    def fork(self, state: DenoisingState, memory: Memory) -> tuple[DenoisingState, Int[Tensor, " c"]]:
        """The candidate canvases of this step, and the row each belongs to, in order: a row as it is, its variants,
        the next row.

        A slot that a variant fills is marked as committed at the step before, like everything else it builds on.
        """
        raise NotImplementedError

    def view(self, state: DenoisingState, window: Window, memory: Memory) -> Canvas:
        """What the model is shown at this step."""
        return plain_view(state)

    def asks(self, state: DenoisingState, window: Window, canvas: Canvas) -> Bool[Tensor, "b s"]:
        """Slots whose distribution this step needs: every masked open slot, and every extra one that speaks."""
        asked = state.masked & window.open
        if canvas.targets is None:
            return functional.pad(asked, (0, canvas.extra), value=True)
        return torch.cat((asked, canvas.targets >= 0), dim=1)

    def decide(
        self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory
    ) -> Move | tuple[Move, Memory]:
        """The move of this step, with the next memory if the method has one.

        With branches, `state`, `window` and `prediction` have a row per candidate canvas; memory and move have a row
        per row, and the move says in `branch` which candidate won (0 = the row as it is) and commits whatever that one
        holds beyond it.
        """
        raise NotImplementedError

    @staticmethod
    def eligible(state: DenoisingState, window: Window, prediction: Prediction) -> Bool[Tensor, "b l"]:
        """Slots this step may commit: masked, open, asked about and not held back."""
        return state.masked & window.open & prediction.known[:, : state.num_slots]

    @staticmethod
    def move(state: DenoisingState, commit: Bool[Tensor, "b l"], prediction: Prediction) -> Move:
        """Commit the candidates of the given slots."""
        return Move(commit, torch.where(commit, prediction.tokens[:, : state.num_slots], state.tokens))
