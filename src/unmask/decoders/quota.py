"""Methods that commit a fixed number of slots per step: LLaDA's two and Dream's three rankings.

Sources: Nie et al., LLaDA (arXiv 2502.09992), alg. 5 and its quota table; Chang et al., MaskGIT (arXiv 2202.04200);
Ye et al., Dream 7B (arXiv 2508.15487). Deviates: `steps` is spread over blocks in proportion to their length, so any
number of steps works with any block length, and no step is wasted on a quota of 0. Dream's own timetable rounds down
(its first forward may commit nothing and its last one several); `compat="dream"` follows it, `compat="dc-leap"` from
its second entry on, as DC-Leap's block-wise baseline does. dllm's samplers round half to even instead of giving the
larger shares to the first steps (`compat="dllm"`).

Shape letters: b batch rows, l canvas slots.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.sampling import Noise
from unmask.core.state import DenoisingState, Move
from unmask.core.window import Window
from unmask.decoders.base import Decoder, Memory
from unmask.decoders.selection import first_only, force, top

FIRST_TIME, LAST_TIME = 1.0, 1e-3  # Dream's time grid runs from 1 to eps

Compat = Literal["none", "dream", "fast-dllm", "dc-leap"]
Rounding = Literal["none", "dllm"]  # compat of methods whose every step commits


def steps_of_window(steps: int | None, state: DenoisingState, window: Window, idle: bool = False) -> Int[Tensor, " b"]:
    """How many of a row's `steps` belong to the open window: its share by length, at least 1, all windows summing up.

    `steps=None` means one step per slot; more steps than slots are cut to one per slot unless steps may be `idle`.
    """
    size = window.open.sum(-1)
    if steps is None:
        return size.clamp_min(1)
    total = state.answer.sum(-1).clamp_min(1)
    start = (state.answer & (state.slots < window.first[:, None])).sum(-1)
    until, since = (_round_half_up(steps * edge, total) for edge in (start + size, start))
    planned = (until - since).clamp_min(1)
    return planned if idle else torch.minimum(planned, size.clamp_min(1))


def _round_half_up(numerator: Tensor, denominator: Tensor) -> Tensor:
    return (2 * numerator + denominator).div(2 * denominator, rounding_mode="floor")


def quota(steps: int | None, state: DenoisingState, window: Window) -> Int[Tensor, " b"]:
    """Slots to commit at this step: the window's slots spread evenly over its steps, the larger shares first.

    10 slots in 4 steps give 3, 3, 2, 2. After the last planned step everything that is left.
    """
    size, planned = window.open.sum(-1), steps_of_window(steps, state, window)
    share = size.div(planned, rounding_mode="floor") + (window.age < size % planned)
    return torch.where(window.age < planned, share.clamp_min(1), size)


def half_even_quota(steps: int | None, state: DenoisingState, window: Window) -> Int[Tensor, " b"]:
    """dllm's share of a step: slots left over steps left of a plan for the whole window, halves rounded to even.

    10 slots in 4 steps give 2, 3, 2, 3, and 32 in 5 give 6, 6, 7, 6, 7. Steps that would get 0 do not exist.
    """
    size, planned = window.open.sum(-1), steps_of_window(steps, state, window)
    shares = []
    for left, number, age in zip(size.tolist(), planned.tolist(), window.age.tolist(), strict=True):
        for past in range(min(age, number)):
            left -= round(left / (number - past))
        shares.append(round(left / (number - age)) if age < number else left)
    return torch.where(window.age < planned, torch.tensor(shares, device=size.device), size)


def check_rounding(compat: str) -> None:
    """Raises ValueError unless compat names a rounding."""
    if compat not in get_args(Rounding):
        raise ValueError(f'compat must be "none" or "dllm": got "{compat}"')


def timetable(steps: Int[Tensor, " b"], age: Int[Tensor, " b"], masked: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Dream's number of slots at step `age` of `steps`: masked * (1 - t_next / t), rounded down; at the last step all.

    8 slots in 8 steps give 0, 1, 1, 1, 1, 1, 1, 2. Float32 like the original, since the rounding depends on it.
    """
    counts = []
    for planned, now, left in zip(steps.tolist(), age.tolist(), masked.tolist(), strict=True):
        grid = torch.linspace(FIRST_TIME, LAST_TIME, planned + 1)
        last = now >= planned - 1
        counts.append(left if last else int(left * (1 - grid[now + 1] / grid[now])))
    return torch.tensor(counts, device=steps.device)


def check_steps(steps: int | None) -> None:
    """Raises ValueError unless steps is None or a count."""
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, or None for one step per token: got {steps}")


class Quota(Decoder):
    """Commit the best `quota` slots of each step; subclasses say what best means."""

    __slots__ = ()
    steps: int | None
    compat: Compat | Rounding = "none"

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        """Higher is committed earlier."""
        raise NotImplementedError

    @property
    def idles(self) -> bool:
        return not self._commits_always

    @property
    def _commits_always(self) -> bool:
        return self.compat in get_args(Rounding)

    @property
    def spreads(self) -> bool:
        return self.steps is not None

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        if self._commits_always:
            count = (quota if self.compat == "none" else half_even_quota)(self.steps, state, window)
        else:
            planned = steps_of_window(self.steps, state, window, idle=True)
            age = window.age + 1 if self.compat == "dc-leap" else window.age
            count = timetable(planned, age, (state.masked & window.open).sum(-1))
        commit = self.choose(state, prediction, among, count)
        if self._commits_always:
            commit = force(self.score(state, prediction), among, commit, window)
        if self.compat == "fast-dllm":
            commit = lead(window, among, commit)
        return self.move(state, commit, prediction)

    def choose(
        self, state: DenoisingState, prediction: Prediction, among: Bool[Tensor, "b l"], count: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b l"]:
        """The slots of this step."""
        return top(self.score(state, prediction), among, count)


def lead(window: Window, among: Bool[Tensor, "b l"], commit: Bool[Tensor, "b l"]) -> Bool[Tensor, "b l"]:
    """Fast-dLLM's rule for Dream with a cache: the step that opens a block commits its first slot and nothing else."""
    return torch.where((window.age == 0)[:, None], first_only(among), commit)


@dataclass(frozen=True, slots=True)
class LowConfidence(Quota):
    """Commit the most confident candidates, a fixed number per step (LLaDA's `low_confidence` remasking)."""

    steps: int | None = None  # forward passes for the whole answer; None = one per token
    compat: Rounding = "none"  # "dllm": shares of a step rounded half to even, larger ones anywhere

    def __post_init__(self) -> None:
        Quota.__post_init__(self)
        check_rounding(self.compat)

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return prediction.confidence[:, : state.num_slots]


@dataclass(frozen=True, slots=True)
class Random(Quota):
    """Commit slots in random order, a fixed number per step (LLaDA's `random` remasking)."""

    steps: int | None = None  # forward passes for the whole answer; None = one per token

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return uniform(state, "order")


def uniform(state: DenoisingState, stream: str) -> Float[Tensor, "b l"]:
    """Random numbers in (0, 1) of the row's own stream, one per slot."""
    return Noise(state.seed, state.step).uniform(stream, state.slots.expand_as(state.tokens))


@dataclass(frozen=True, slots=True)
class MaskgitPlus(Quota):
    """Commit the slots of highest confidence, a fixed number per step (Dream's `maskgit_plus`)."""

    steps: int | None = None  # forward passes for the whole answer; None = one per token
    order_temperature: float = 0.0  # Dream's alg_temp: > 0 draws the slots instead of taking the best
    compat: Compat = "none"  # "dream": rounded down; "fast-dllm": and a block's first slot alone; "dc-leap": one less

    def __post_init__(self) -> None:
        Quota.__post_init__(self)
        if not 0.0 <= self.order_temperature < float("inf"):
            raise ValueError(f"order_temperature must be a number from 0 up: got {self.order_temperature}")

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return prediction.confidence[:, : state.num_slots]

    def choose(
        self, state: DenoisingState, prediction: Prediction, among: Bool[Tensor, "b l"], count: Int[Tensor, " b"]
    ) -> Bool[Tensor, "b l"]:
        return top(perturbed(self.score(state, prediction), state, self.order_temperature), among, count)


@dataclass(frozen=True, slots=True)
class TopkMargin(MaskgitPlus):
    """Commit the slots whose best token leads the second by most, a fixed number per step (Dream's `topk_margin`)."""

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return prediction.margin[:, : state.num_slots]


@dataclass(frozen=True, slots=True)
class Entropy(MaskgitPlus):
    """Commit the slots of lowest entropy, a fixed number per step (Dream's `entropy`)."""

    def score(self, state: DenoisingState, prediction: Prediction) -> Float[Tensor, "b l"]:
        return -prediction.entropy[:, : state.num_slots]


def perturbed(score: Float[Tensor, "b l"], state: DenoisingState, temperature: float) -> Tensor:
    """Scores whose order is a draw without replacement from softmax(score / temperature) (Gumbel top-k)."""
    if temperature == 0.0:
        return score
    return score.double() / temperature - torch.log(-torch.log(uniform(state, "order")))


@dataclass(frozen=True, slots=True)
class Origin(Decoder):
    """Commit every masked slot with the chance of the reverse process, whatever its score (Dream's `origin`).

    The number of forward passes is `steps`, some of which may commit nothing; the last one commits what is left.
    """

    steps: int | None = None  # forward passes for the whole answer; None = one per token

    def __post_init__(self) -> None:
        check_steps(self.steps)

    @property
    def idles(self) -> bool:
        return True

    @property
    def spreads(self) -> bool:
        return True

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Memory) -> Move:
        among = self.eligible(state, window, prediction)
        planned = steps_of_window(self.steps, state, window, idle=True)
        now, then = (FIRST_TIME - (FIRST_TIME - LAST_TIME) * (window.age + k) / planned for k in (0, 1))
        chance = torch.where(window.age >= planned - 1, 1.0, 1.0 - then / now)
        return self.move(state, among & (uniform(state, "order") < chance[:, None]), prediction)
