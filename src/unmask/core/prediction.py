"""What the model said at one step, summarised lazily.

Logits stay in asked space, (b, a, v); no tensor as wide as the vocabulary is made for slots that nobody asked about.
Summaries come in canvas space, (b, l), and are computed when first read.

Shape letters: b batch rows, l canvas slots, s canvas plus extra slots, a asked targets, v vocabulary.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.canvas import ForwardPlan
from unmask.core.sampling import Noise, Sampling, draw, truncate


@dataclass(frozen=True)
class Prediction:
    """Candidates and scores of the asked slots.

    Scores are 0 (confidence, margin) or infinite (entropy) at slots nobody asked about; read them where `known`.
    """

    logits: Float[Tensor, "b a v"]
    work: ForwardPlan
    num_slots: int
    sampling: Sampling
    noise: Noise
    held: Bool[Tensor, "b s"] | None = None  # asked, but may not be committed at this step
    targets: Int[Tensor, "b e"] | None = None  # per extra slot: the slot it speaks about, -1 = none

    @cached_property
    def known(self) -> Bool[Tensor, "b s"]:
        """Slots that were asked about and may be committed."""
        known = self._spread(torch.ones_like(self.work.asked, dtype=torch.bool), False)
        return known if self.held is None else known & ~self.held

    @cached_property
    def tokens(self) -> Int[Tensor, "b s"]:
        """Candidate of every known slot, -1 elsewhere."""
        return self._spread(self._drawn, -1)

    @cached_property
    def confidence(self) -> Float[Tensor, "b s"]:
        """Probability of the candidate, 0..1."""
        chosen = self._probabilities_of(self._drawn)
        for token in self.sampling.distrust:
            chosen = torch.where(self._drawn == token, 0.0, chosen)
        return self._spread(chosen, 0.0)

    @cached_property
    def entropy(self) -> Float[Tensor, "b s"]:
        """Entropy of the slot's distribution, nats."""
        return self._spread(torch.special.entr(self._distribution).sum(-1), float("inf"))

    @cached_property
    def margin(self) -> Float[Tensor, "b s"]:
        """Probability of the most likely token minus that of the second, 0..1."""
        best = self._distribution.topk(min(2, self.logits.shape[-1]), dim=-1).values
        return self._spread(best[..., 0] - best[..., 1:].sum(-1), 0.0)

    @cached_property
    def gap(self) -> Float[Tensor, "b s"]:
        """Largest logit minus the second largest, noise-free; 0 at slots nobody asked about."""
        best = self.logits.to(self.sampling.precision).topk(min(2, self.logits.shape[-1]), dim=-1).values
        return self._spread(best[..., 0] - best[..., 1:].sum(-1), 0.0)

    def confidence_in(self, tokens: Int[Tensor, "b l"]) -> Float[Tensor, "b s"]:
        """Probability of the given token at every asked slot, 0..1. An extra slot is asked for its target's token."""
        if self.targets is not None:
            tokens = torch.cat((tokens, tokens.gather(1, self.targets.clamp_min(0))), dim=1)
        return self._spread(self._probabilities_of(tokens.gather(1, self.work.asked)), 0.0)

    def echo(self, values: Tensor, default: bool | int | float) -> Tensor:
        """What the extra slots say, (b, l): the value of each extra slot at the slot it speaks about.

        Args:
            values: any summary of this prediction, (b, s).
            default: at slots no extra slot speaks about.
        """
        assert self.targets is not None, "this canvas has no extra slots"
        num_answer_slots = self.num_slots - self.targets.shape[1]
        target = torch.where(self.targets < 0, num_answer_slots, self.targets)
        spread = values.new_full((values.shape[0], num_answer_slots + 1), default)
        return spread.scatter(1, target, values[:, num_answer_slots:])[:, :num_answer_slots]

    def likeliest(self, count: int) -> tuple[Int[Tensor, "b s n"], Float[Tensor, "b s n"]]:
        """The `count` most likely tokens of every asked slot and their probabilities, best first; 0 elsewhere."""
        best = self._distribution.topk(min(count, self.logits.shape[-1]), dim=-1)
        return self._spread(best.indices, 0), self._spread(best.values, 0.0)

    def kl_from(self, previous: "Prediction") -> Float[Tensor, "b s"]:
        """KL(now || previous) of every slot asked about both times, nats; infinite elsewhere."""
        now, before = (
            one._distribution.clamp_min(torch.finfo(one.sampling.precision).tiny) for one in (self, previous)
        )
        rank = previous._spread(torch.arange(before.shape[1], device=before.device).expand(before.shape[:2]), -1)
        place = rank.gather(1, self.work.asked)
        old = before.gather(1, place.clamp_min(0)[..., None].expand(-1, -1, before.shape[-1]))
        divergence = (now * (now.log() - old.log())).sum(-1)
        return self._spread(torch.where(place < 0, float("inf"), divergence), float("inf"))

    def without_extras(self) -> "Prediction":
        """What was said about the answer's slots alone, for parts that know nothing of extra ones."""
        if self.targets is None:
            return self
        num_slots = self.num_slots - self.targets.shape[1]
        ranks = torch.arange(self.work.asked.shape[1], device=self.targets.device)[None]
        count = ((self.work.asked < num_slots) & (ranks < self.work.num_asked[:, None])).sum(-1)  # they come first
        width = max(int(count.max()), 1)
        asked = torch.where(ranks < count[:, None], self.work.asked, self.work.asked[:, :1])[:, :width]
        asked, speakers = asked.clamp_max(num_slots - 1), self.work.speakers[:, :width]
        work = replace(self.work, asked=asked, num_asked=count, speakers=speakers)
        held = None if self.held is None else self.held[:, :num_slots]
        return Prediction(self.logits[:, :width], work, num_slots, self.sampling, self.noise, held)

    def with_extras(self, first: int, last: int) -> "Prediction":
        """The same prediction, of whose extra slots only those from `first` to before `last` speak."""
        if self.targets is None:
            return self
        places = torch.arange(self.targets.shape[1], device=self.targets.device)
        return self._changed(targets=self.targets.masked_fill((places < first) | (places >= last), -1))

    def hold(self, slots: Bool[Tensor, "b s"]) -> "Prediction":
        """The same prediction, with some slots barred from being committed at this step."""
        return self._changed(held=slots)

    def _changed(self, **fields: Tensor) -> "Prediction":
        """A copy with other fields that keeps what was summarised already; `known` alone depends on them."""
        copy = replace(self, **fields)  # type: ignore[arg-type]
        stale = {*fields, "known"}
        copy.__dict__.update({name: value for name, value in self.__dict__.items() if name not in stale})
        return copy

    @cached_property
    def _drawn(self) -> Int[Tensor, "b a"]:
        return draw(self.logits, self.work.asked, self.noise, self.sampling)

    @cached_property
    def _trusted(self) -> Float[Tensor, "b a v"]:
        """Logits that confidence is measured on."""
        logits = self.logits
        if self.sampling.confidence == "drawn":
            logits = truncate(logits.double() / (self.sampling.temperature or 1.0), self.sampling)
        if self.sampling.distrust:
            logits = logits.clone()
            logits[..., list(self.sampling.distrust)] = float("-inf")
        return logits

    @property
    def _distribution(self) -> Float[Tensor, "b a v"]:
        return self._trusted.to(self.sampling.precision).softmax(-1)

    def _probabilities_of(self, tokens: Int[Tensor, "b a"]) -> Float[Tensor, "b a"]:
        return self._distribution.gather(-1, tokens[..., None])[..., 0]

    def _spread(self, values: Tensor, default: bool | int | float) -> Tensor:
        """Values of the asked slots, (b, a) or (b, a, n), in canvas space."""
        ranks = torch.arange(values.shape[1], device=values.device)[None]
        target = torch.where(ranks < self.work.num_asked[:, None], self.work.asked, self.num_slots)
        size, beyond = (values.shape[0], self.num_slots + 1), values.shape[2:]
        spread = torch.full((*size, *beyond), default, dtype=values.dtype, device=values.device)
        target = target.view(*target.shape, *[1] * len(beyond)).expand_as(values)
        return spread.scatter(1, target, values)[:, : self.num_slots]  # padding went to the surplus slot
