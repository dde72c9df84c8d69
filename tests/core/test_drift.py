"""How many commits a cache has changed, on predictors whose answers are known and on the reference checkpoints."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
import unmask
from fakes import CallCounter, Entry, ScriptedPredictor, steps
from unmask.caches import CACHES
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import denoise
from unmask.core.drift import Drift, drifted
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Whole
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.generation import Recipe, complete, drift_of, run, start_state

NONE = CACHES.make("none")

# By hand -------------------------------------------------------------------------------------------------------------


class Stale(ScriptedPredictor):
    """Answers from one table under a cache that keeps something and from another one, step by step, without."""

    def __init__(self, stale: list[Entry], exact: list[Entry], **options: Any) -> None:
        super().__init__(stale, **options)
        self.exact = [ScriptedPredictor([entry], **options) for entry in exact]
        self.asked: list[int] = []

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: CallCounter) -> Tensor:
        if cache.keeps:
            return super().__call__(canvas, work, cache, store)
        self.asked.append(int(work.num_asked[0]))
        return self.exact[len(self.asked) - 1](canvas, work, cache, store)


def measured(predictor: Any, decoder: Decoder, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Compared and changed slots of every step of the one row, under a cache that keeps something."""
    pairs = [drifted(predictor, step, NONE) for step in steps(predictor, decoder, cache="dual", **options)]
    return [tuple(flags[0].nonzero()[:, 0].tolist() for flags in pair) for pair in pairs]  # type: ignore[misc]


STALE = [{1: (4, 0.9), 2: (5, 0.95), 3: (6, 0.3)}, {3: (7, 0.9)}]


def test_commits_whose_candidate_is_another_token_are_counted() -> None:
    """Of the first two commits slot 2 would have been 3; that slot 3, which waits, differs as well does not matter."""
    predictor = Stale(STALE, [{1: (4, 0.4), 2: (3, 0.9), 3: (2, 0.9)}, {3: (7, 0.2)}])
    assert measured(predictor, Threshold(0.8), length=3) == [([1, 2], [2]), ([3], [])]
    assert predictor.asked == [3, 1]  # the same questions as in the run


def test_the_share_is_over_all_steps() -> None:
    predictor = Stale(STALE, [{1: (4, 0.4), 2: (3, 0.9)}, {3: (7, 0.2)}])
    drift = Drift(predictor, NONE)
    for step in steps(predictor, Threshold(0.8), length=3, cache="dual"):
        drift.add(step)
    assert drift.share(0) == 1 / 3
    assert drift.share(1) == 0.0  # a row that never was


def test_the_draw_of_the_second_pass_has_the_noise_of_the_first() -> None:
    """Flat distributions: without the same noise nearly every token would be another."""
    predictor = Stale([{}], [{}] * 3, vocab_size=50)
    options: dict[str, Any] = {"length": 12, "sampling": Sampling(temperature=1.0), "schedule": Whole()}
    found = measured(predictor, LowConfidence(steps=3), **options)
    assert [len(compared) for compared, _ in found] == [4, 4, 4]
    assert not any(changed for _, changed in found)


def test_a_token_that_may_not_be_drawn_is_no_candidate_of_the_second_pass_either() -> None:
    predictor = Stale([{1: (4, 0.9)}], [{1: (3, 0.9)}])
    allowed = Sampling(precision=torch.float64)
    assert measured(predictor, Threshold(0.8), length=1, sampling=allowed) == [([1], [1])]
    predictor = Stale([{1: (0, 0.9)}], [{1: (3, 0.9)}])
    assert measured(predictor, Threshold(0.8), length=1, sampling=replace(allowed, forbid=(3,))) == [([1], [])]


@dataclass(frozen=True, slots=True)
class Unasked(Decoder):
    """Asks about the first masked slot only and commits all of them."""

    def asks(self, state: DenoisingState, window: Any, canvas: Canvas) -> Tensor:
        return state.masked & (state.masked.cumsum(-1) == 1)

    def decide(self, state: DenoisingState, window: Any, prediction: Any, memory: Any) -> Move:
        return Move(state.masked, torch.where(prediction.known, prediction.tokens, 8))


def test_commits_that_nobody_asked_about_are_not_compared() -> None:
    assert measured(Stale([{1: (4, 0.9)}], [{1: (5, 0.9)}]), Unasked(), length=3) == [([1], [1])]


# On checkpoints ------------------------------------------------------------------------------------------------------


def shares(
    family: str, decoder: str, schedule: str, cache: str, *, temperature: float = 0.0, **options: Any
) -> list[float]:
    """Drift of all three rows of the contract, in float64."""
    network, plan = contract.model(family, **options), SCHEDULES.make(schedule)
    predictor: Any = network.in_blocks(plan).predictor  # type: ignore[arg-type]
    drift = Drift(predictor, NONE)
    sampling = Sampling(temperature=temperature, precision=torch.float64)
    parts: dict[str, Any] = {"schedule": plan, "cache": CACHES.make(cache), "sampling": sampling}
    for step in denoise(
        predictor, contract.first_state(family), DECODERS.make(decoder), stop=Stopping("none"), **parts
    ):
        drift.add(step)
    return [drift.share(row) for row in range(3)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_no_cache_and_caches_that_recompute_everything_have_no_drift(family: str, temperature: float) -> None:
    for cache in ("none", "dual(refresh=1)", "features(prompt_every=1, answer_every=1)"):
        parts = "threshold(threshold=0.7)", "sequential(block_length=8)", cache
        assert shares(family, *parts, temperature=temperature) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "cache", [name for name, policy in CACHES.items() if policy.exact and policy.keeps] + ["prefix"]
)
def test_a_cache_that_is_exact_on_a_block_causal_model_has_no_drift_there(cache: str) -> None:
    parts = "threshold(threshold=0.7)", "sequential(block_length=4)", cache
    assert shares("llada", *parts, temperature=0.6, attention="block_causal") == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("cache", ["dual", "features(prompt_every=9, answer_every=9, share=0.1)"])
def test_an_approximate_cache_has_some(cache: str) -> None:
    found = shares("llada", "low-confidence", "sequential(block_length=8)", cache, temperature=0.8)
    assert 0.0 < max(found) < 1.0


# In a completion -----------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"decoder": "threshold", "cache": "dual", "length": 16}
PROMPTS = ["sort the list", "12+3=?"]


def test_drift_is_measured_on_request_and_changes_no_other_figure(llada: unmask.Model) -> None:
    plain = unmask.generate(llada, PROMPTS, **RUN)
    found = unmask.generate(llada, PROMPTS, **RUN, drift=True)
    for one, other in zip(plain, found, strict=True):
        assert one.drift is None and other.drift is not None and 0.0 <= other.drift <= 1.0
        assert (one.tokens, one.nfe, one.rows_computed) == (other.tokens, other.nfe, other.rows_computed)
    assert max(one.drift for one in found if one.drift is not None) > 0.0
    alone = [unmask.generate(llada, [prompt], **RUN, drift=True)[0].drift for prompt in PROMPTS]
    assert [one.drift for one in found] == alone
    [none] = unmask.generate(llada, PROMPTS[:1], length=16, drift=True)
    assert none.drift == 0.0


def test_the_second_pass_takes_none_of_the_seconds(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves only while somebody measures: nothing of it arrives in the completion."""
    now, real = [0.0], Drift.add

    def add(self: Drift, step: Any) -> None:
        now[0] += 100.0
        real(self, step)

    monkeypatch.setattr(Drift, "add", add)
    monkeypatch.setattr("unmask.generation.time.perf_counter", lambda: now[0])
    [answer] = unmask.generate(llada, PROMPTS[:1], **RUN, drift=True)
    assert now[0] == 100.0 * answer.nfe and answer.seconds == 0.0


def test_the_run_and_the_second_pass_see_blocks_alike(block_causal: unmask.Model) -> None:
    """The model has blocks of 8 of its own and is decoded in blocks of 4, which the schedule decides."""
    recipe = Recipe.of("threshold", "sequential(block_length=4)", "prefix", facts=block_causal.facts)
    state = start_state(block_causal, PROMPTS, 16)
    assert [one.drift for one in complete(block_causal, state, recipe, drift=True)] == [0.0, 0.0]
    drift, other = drift_of(block_causal, recipe), Drift(block_causal.predictor, NONE)
    differ = 0
    for step in run(block_causal, state, recipe):
        drift.add(step)
        other.add(step)
        differ += int(drifted(block_causal.predictor, step, NONE)[1].sum())
    assert drift.share(0) == drift.share(1) == 0.0 and differ > 0
