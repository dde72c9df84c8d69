"""Mask predictors without a network, so that a decoder's answer can be worked out on paper.

    predictor = ScriptedPredictor(
        script=[
            {2: (4, 0.95), 3: (5, 0.6)},  # first forward pass: slot 2 says token 4 with confidence 0.95, ...
            {3: (6, 0.9)},  # second forward pass and all later ones
        ]
    )
    assert trace(predictor, Threshold(0.9), prompt=[0, 0], length=2) == [[(2, 4)], [(3, 6)]]

Slots are counted from the start of the canvas, prompt included; extra slots of a method come behind the answer. Scripts
talk about targets, so `shift` changes which rows the loop plans and nothing else. Both fakes keep no keys and values:
every cache runs, and none changes an answer.

Shape letters: b batch rows, s canvas plus extra slots, a asked targets, v vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, log
from typing import Any

import torch
from torch import Tensor

from unmask.caches import CACHES
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import Step, denoise
from unmask.core.sampling import Sampling, ban
from unmask.core.schedules import Schedule, Whole
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import Decoder
from unmask.models.facts import ModelFacts

Answer = tuple[int, float] | Sequence[float]  # (token, its probability), or the probability of every token
Entry = Mapping[int, Answer]  # slot -> answer; slots left out get a flat distribution


@dataclass(frozen=True)
class CallCounter:
    """A store that keeps nothing except which row this is and how many forward passes it has had."""

    row: Tensor  # (b,)
    calls: Tensor  # (b,); the only tensor that changes, in place

    def known(self, shown: Tensor) -> None:
        return None

    def computed(self, work: ForwardPlan) -> Tensor:
        return work.num_rows

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        self.calls.add_(1)


class Fake:
    """What both fakes share. `seen` lists the canvas and the plan of every forward pass, over all runs.

    Args:
        vocab_size: tokens, the mask included.
        mask_id: None = the last token.
        end_ids: tokens that end an answer; () = none.
        shift: 0 a row speaks for its own slot, 1 for its right neighbour.
        banned_ids: tokens without probability; None = the mask.
        attention: what the facts state; a fake has no attention.
    """

    passes = 1

    def __init__(
        self,
        *,
        vocab_size: int = 10,
        mask_id: int | None = None,
        end_ids: tuple[int, ...] = (),
        shift: int = 0,
        banned_ids: tuple[int, ...] | None = None,
        attention: Any = "bidirectional",
    ) -> None:
        mask = vocab_size - 1 if mask_id is None else mask_id
        self.facts = ModelFacts(
            mask_id=mask,
            end_ids=end_ids,
            banned_ids=(mask,) if banned_ids is None else banned_ids,
            vocab_size=vocab_size,
            shift=shift,
            attention=attention,
            block_length=4,
            family="fake",
            max_length=1024,
        )
        self.seen: list[tuple[Canvas, ForwardPlan]] = []

    def open_store(self, state: DenoisingState, cache: Any) -> CallCounter:
        rows = torch.arange(state.num_rows)
        return CallCounter(rows, torch.zeros_like(rows))

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: CallCounter) -> Tensor:
        self.seen.append((canvas, work))
        logits = self.everywhere(canvas, store)
        asked = logits.gather(1, work.asked[..., None].expand(-1, -1, logits.shape[-1]))
        return ban(asked, self.facts.banned_ids)

    def everywhere(self, canvas: Canvas, store: CallCounter) -> Tensor:
        """Logits of every slot, (b, s, v)."""
        raise NotImplementedError


class ScriptedPredictor(Fake):
    """Answers from a table. Entry k is for a row's forward pass k; the last entry repeats.

    An answer `(token, confidence)` gives the token that probability; what is left is spread evenly over the other
    tokens that are not the mask. In float64 (the default of `steps` below) the number is met or missed by a rounding
    step above it, never below: 0.9 passes a bound of 0.9 that lets itself pass. For a bound that does not, use 0.5,
    which small vocabularies meet exactly. In float32 keep 1e-6 away from bounds. An answer may also be a whole
    distribution, one probability per token. Every run starts at the first entry.

    Args:
        script: a list of entries for all rows, or a list of such lists, one per row.
        options: see `Fake`.
    """

    def __init__(self, script: Sequence[Entry] | Sequence[Sequence[Entry]], **options: Any) -> None:
        super().__init__(**options)
        assert script and all(script if not isinstance(script[0], Mapping) else [True]), "a script needs an entry"
        self.scripts: list[list[Entry]]
        if isinstance(script[0], Mapping):
            self.scripts, self.shared = [list(script)], True  # type: ignore[arg-type]
        else:
            self.scripts, self.shared = [list(one) for one in script], False  # type: ignore[arg-type]

    def everywhere(self, canvas: Canvas, store: CallCounter) -> Tensor:
        logits = torch.zeros(*canvas.tokens.shape, self.facts.vocab_size, dtype=torch.float64)
        logits[..., self.facts.mask_id] = -inf
        for place, (row, call) in enumerate(zip(store.row.tolist(), store.calls.tolist(), strict=True)):
            script = self.scripts[0 if self.shared else row]
            for slot, answer in script[min(call, len(script) - 1)].items():
                if slot < canvas.tokens.shape[1]:
                    logits[place, slot] = self._scores(answer)
        return logits

    def _scores(self, answer: Answer) -> Tensor:
        size, mask = self.facts.vocab_size, self.facts.mask_id
        if len(answer) == size and size != 2:
            assert abs(sum(answer) - 1.0) < 1e-9, f"probabilities must sum to 1: got {answer}"
            return torch.tensor([log(p) if p > 0.0 else -inf for p in answer], dtype=torch.float64)
        token, confidence = answer
        assert token != mask, "give a whole distribution to predict the mask"
        return scores_of(int(token), float(confidence), size, mask)


class FunctionPredictor(Fake):
    """Answers from a function of what is shown.

    Args:
        fn: canvas tokens (b, s) to logits (b, s, v).
        options: see `Fake`.
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], **options: Any) -> None:
        super().__init__(**options)
        self.fn = fn

    def everywhere(self, canvas: Canvas, store: CallCounter) -> Tensor:
        return self.fn(canvas.tokens).clone()


def drifting(seed: int, slots: int = 13, vocab_size: int = 6) -> FunctionPredictor:
    """Random scores, a row of them per slot, which move with every commit; the same ones for every row."""
    table = torch.randn(2, slots, vocab_size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2

    def scores(tokens: Tensor) -> Tensor:
        share = (tokens != vocab_size - 1).sum(-1)[:, None, None] / slots  # padding shows the mask and counts nothing
        before, after = table[:, : tokens.shape[1]]
        return before * (1 - share) + 2 * after * share

    return FunctionPredictor(scores, vocab_size=vocab_size)


@cache
def scores_of(token: int, confidence: float, size: int, mask: int) -> Tensor:
    """Logits, (v,), whose softmax gives the token its confidence, never less.

    Not every number is a softmax of something: the sum below the fraction is rounded too. The best logit is therefore
    raised by the smallest amounts that are felt, until the number is reached.
    """
    rivals = size - 2
    assert confidence <= 1.0 and confidence * (rivals + 1) > 1.0, (
        f"a confidence must be above 1/{rivals + 1}, so that the token is the best, and at most 1: got {confidence}"
    )
    scores = torch.zeros(size, dtype=torch.float64) if confidence < 1.0 else torch.full((size,), -inf).double()
    scores[mask] = -inf
    lead = 0.0 if confidence == 1.0 else log(confidence) - log((1.0 - confidence) / rivals)
    for nudge in range(-16, 64):
        scores[token] = lead + nudge * 2.0**-54 / max(confidence * (1.0 - confidence), 2.0**-20)
        reached = float(scores.softmax(-1)[token])
        if confidence <= reached < confidence + 1e-14:
            return scores
    raise AssertionError(f"no logits give confidence {confidence} among {size} tokens")


def steps(
    predictor: Any,
    decoder: Decoder,
    *,
    prompt: Sequence[int] = (0,),
    length: int = 6,
    schedule: Schedule | None = None,
    cache: str = "none",
    state: DenoisingState | None = None,
    stop: Stopping | None = None,
    sampling: Sampling | None = None,
) -> list[Step]:
    """Run the loop to its end: one prompt or the given state; the whole answer is one window unless told otherwise."""
    about = {"mask_id": predictor.facts.mask_id, "end_ids": predictor.facts.end_ids, "shift": predictor.facts.shift}
    state = state or DenoisingState.start([list(prompt)], length, **about)
    return list(
        denoise(
            predictor,
            state,
            decoder,
            schedule=schedule or Whole(),
            cache=CACHES.make(cache),
            sampling=sampling or Sampling(precision=torch.float64),
            stop=stop or Stopping("none"),
        )
    )


def trace(predictor: Any, decoder: Decoder, *, row: int = 0, **options: Any) -> list[list[tuple[int, int]]]:
    """What every step of one row committed, as (slot, token) pairs; options as in `steps`."""
    commits = []
    for step in steps(predictor, decoder, **options):
        for place in (step.row_ids == row).nonzero()[:, 0].tolist():
            slots = step.move.commit[place].nonzero()[:, 0].tolist()
            commits.append([(slot, int(step.after.tokens[place, slot])) for slot in slots])
    return commits
