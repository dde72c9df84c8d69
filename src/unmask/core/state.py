"""The canvas of every row and the only way it changes.

Shape letters: b batch rows, l canvas slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from unmask.core import rows as tree
from unmask.errors import RequestError

LAST_SEED = 2**63 - 1  # seeds are 64-bit integers
NEVER = -1  # value of `committed_at` while a slot is masked, and for given slots


@dataclass(frozen=True, slots=True)
class Move:
    """What a decoder decided at one step."""

    commit: Bool[Tensor, "b l"]  # masked slots that receive tokens, and revoked ones that receive others at once
    tokens: Int[Tensor, "b l"]  # read where commit is True
    revoke: Bool[Tensor, "b l"] | None = None  # committed slots that become masked again, unless also in `commit`
    branch: Int[Tensor, " b"] | None = None  # which candidate canvas won, if there were several
    chances: Float[Tensor, "b l"] | None = None  # probability of tokens that are not this step's candidates, else 0

    @property
    def changes(self) -> Bool[Tensor, " b"]:
        """Rows in which anything happens."""
        happens = self.commit.any(-1)
        return happens if self.revoke is None else happens | self.revoke.any(-1)


@dataclass(frozen=True, slots=True)
class DenoisingState:
    """Where every row stands. Immutable; `apply` answers with the successor.

    `masked` is the truth and is never inferred from `tokens == mask_id`: a model may predict the mask token. The last
    three fields are facts of the model that laying out a canvas takes; decoders leave them to `core/extras.py`.
    """

    tokens: Int[Tensor, "b l"]  # mask_id where masked
    masked: Bool[Tensor, "b l"]
    given: Bool[Tensor, "b l"]  # prompt or infill text; may never change
    exists: Bool[Tensor, "b l"]  # False on padding
    committed_at: Int[Tensor, "b l"]  # step of the last commit, NEVER while masked
    prompt_length: Int[Tensor, " b"]  # slots before the first one to be decided
    step: Int[Tensor, " b"]  # forward passes this row has had
    seed: Int[Tensor, " b"]  # noise stream of the row, whatever its batch mates
    mask_id: int
    end_ids: tuple[int, ...] = ()  # tokens that end an answer
    shift: int = 0  # 1 where the row left of a slot speaks for it

    @classmethod
    def start(
        cls,
        prompts: Sequence[Sequence[int]],
        lengths: int | Sequence[int],
        *,
        mask_id: int,
        end_ids: tuple[int, ...] = (),
        shift: int = 0,
        seeds: int | Sequence[int] = 0,
        device: torch.device | str = "cpu",
    ) -> "DenoisingState":
        """Canvases with the prompt given, `length` masked slots behind it and padding on the right.

        Args:
            prompts: token ids per row, any lengths.
            lengths: answer slots, one number for all rows or one per row, each >= 1.
            mask_id: id shown to the model at masked slots.
            end_ids, shift: what the model's facts say.
            seeds: one per row, or one number `s`: row i then draws from stream `s + i`.

        Raises:
            RequestError: no rows, an empty prompt, a length below 1, or counts that differ.
        """
        lengths = [lengths] * len(prompts) if isinstance(lengths, int) else list(lengths)
        if len(lengths) != len(prompts):
            raise RequestError(f"need one length per prompt: got {len(lengths)} lengths for {len(prompts)} prompts")
        for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            if not len(prompt):
                raise RequestError(f"prompt {row} is empty; give at least one token")
            if length < 1:
                raise RequestError(f"length must be at least 1: got length={length} for prompt {row}")
        canvases = [[*prompt, *[None] * length] for prompt, length in zip(prompts, lengths, strict=True)]
        facts = {"mask_id": mask_id, "end_ids": end_ids, "shift": shift}
        return cls.from_canvas(canvases, **facts, seeds=seeds, device=device)  # type: ignore[arg-type]

    @classmethod
    def from_canvas(
        cls,
        canvases: Sequence[Sequence[int | None]],
        *,
        mask_id: int,
        end_ids: tuple[int, ...] = (),
        shift: int = 0,
        seeds: int | Sequence[int] = 0,
        device: torch.device | str = "cpu",
    ) -> "DenoisingState":
        """Infilling: each canvas lists its token ids, with None at every slot that is to be filled, anywhere.

        Raises:
            RequestError: no rows, a row with nothing to fill, a wrong number of seeds, or one out of range.
        """
        if not canvases:
            raise RequestError("got no prompts; give at least one")
        seeds = [seeds + row for row in range(len(canvases))] if isinstance(seeds, int) else list(seeds)
        if len(seeds) != len(canvases):
            raise RequestError(f"need one seed per prompt: got {len(seeds)} seeds for {len(canvases)} prompts")
        if not all(0 <= seed <= LAST_SEED for seed in seeds):
            raise RequestError(f"seeds must be from 0 to {LAST_SEED}: got {min(seeds)} to {max(seeds)}")
        longest = max(len(canvas) for canvas in canvases)
        size = (len(canvases), longest)
        tokens = torch.full(size, mask_id)
        masked, given, exists = (torch.zeros(size, dtype=torch.bool) for _ in range(3))
        firsts = []
        for row, canvas in enumerate(canvases):
            holes = [slot for slot, token in enumerate(canvas) if token is None]
            if not holes:
                raise RequestError(f"canvas {row} has no slot to fill; put None where a token is wanted")
            firsts.append(holes[0])
            length = len(canvas)
            tokens[row, :length] = torch.tensor([mask_id if token is None else token for token in canvas])
            masked[row, holes] = True
            exists[row, :length] = True
            given[row, :length] = ~masked[row, :length]
        state = cls(
            tokens=tokens,
            masked=masked,
            given=given,
            exists=exists,
            committed_at=torch.full(size, NEVER),
            prompt_length=torch.tensor(firsts),
            step=torch.zeros(size[0], dtype=torch.long),
            seed=torch.tensor(seeds),
            mask_id=mask_id,
            end_ids=end_ids,
            shift=shift,
        )
        return state.to(device)

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_slots(self) -> int:
        return self.tokens.shape[1]

    @property
    def done(self) -> Bool[Tensor, " b"]:
        """Rows without a masked slot."""
        return ~self.masked.any(-1)

    @property
    def answer(self) -> Bool[Tensor, "b l"]:
        """Slots that were or are to be decided."""
        return self.exists & ~self.given

    @property
    def infills(self) -> Bool[Tensor, " b"]:
        """Rows with given text behind their first hole."""
        return (self.given & (self.slots >= self.prompt_length[:, None])).any(-1)

    @property
    def slots(self) -> Int[Tensor, "1 l"]:
        return torch.arange(self.num_slots, device=self.tokens.device)[None]

    def to(self, device: torch.device | str) -> "DenoisingState":
        moved = {
            name: value.to(device)
            for name in self.__dataclass_fields__
            if isinstance(value := getattr(self, name), Tensor)
        }
        return replace(self, **moved)  # type: ignore[arg-type]

    def apply(self, move: Move) -> "DenoisingState":
        """The next state: revocations and commits done, in this order, every row one step older.

        Broken promises of a decoder (a commit on a slot that is not masked, a revocation of a given or masked slot)
        are assertion errors: they are bugs, not bad input.
        """
        tokens, masked, committed_at = self.tokens, self.masked, self.committed_at
        if move.revoke is not None:
            open_to_revocation = self.answer & ~self.masked
            assert not bool((move.revoke & ~open_to_revocation).any()), "a decoder revoked a slot it may not touch"
            tokens = torch.where(move.revoke, self.mask_id, tokens)
            masked = masked | move.revoke
            committed_at = torch.where(move.revoke, NEVER, committed_at)
        assert not bool((move.commit & ~masked).any()), "a decoder committed a slot that was not masked"
        tokens = torch.where(move.commit, move.tokens, tokens)
        masked = masked & ~move.commit
        committed_at = torch.where(move.commit, self.step[:, None], committed_at)
        return replace(self, tokens=tokens, masked=masked, committed_at=committed_at, step=self.step + 1)

    def fill(self, where: Bool[Tensor, "b l"], token: Int[Tensor, " b"]) -> "DenoisingState":
        """Settle masked or committed answer slots with one token per row (the tail behind an end token)."""
        return replace(
            self,
            tokens=torch.where(where, token[:, None], self.tokens),
            masked=self.masked & ~where,
            committed_at=torch.where(where, (self.step - 1).clamp_min(0)[:, None], self.committed_at),
        )

    def take(self, rows: Int[Tensor, " n"]) -> "DenoisingState":
        """The given rows only."""
        return tree.take(self, rows)

    def widen(self, num_slots: int) -> "DenoisingState":
        """The same rows with slots that do not exist appended on the right."""
        extra = num_slots - self.num_slots
        assert extra >= 0, "a canvas cannot be made narrower"
        return replace(
            self,
            tokens=functional.pad(self.tokens, (0, extra), value=self.mask_id),
            masked=functional.pad(self.masked, (0, extra)),
            given=functional.pad(self.given, (0, extra)),
            exists=functional.pad(self.exists, (0, extra)),
            committed_at=functional.pad(self.committed_at, (0, extra), value=NEVER),
        )

    def join(self, other: "DenoisingState") -> "DenoisingState":
        """Both sets of rows in one batch; the shorter canvases are padded."""
        longest = max(self.num_slots, other.num_slots)
        return tree.join(self.widen(longest), other.widen(longest))
