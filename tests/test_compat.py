"""Where our default parts from published code, on paper: the default, and the option that does as published.

docs/compat.md lists every such place; whole traces are compared in test_golden.py.
"""

from collections.abc import Iterator

import pytest
import torch

import contract
from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.caches import CACHES
from unmask.core.canvas import plain_view, plan
from unmask.core.denoise import Step, denoise
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS

FALLING = [{1: (1, 0.9), 2: (2, 0.8), 3: (3, 0.7), 4: (4, 0.6)}]  # the same four answers at every forward pass


def counts(decoder: str, length: int = 8, schedule: str = "whole", cache: str = "none") -> list[int]:
    """Slots committed at each step when every slot is equally good."""
    parts = {"length": length, "schedule": SCHEDULES.make(schedule), "cache": cache}
    return [len(step) for step in trace(ScriptedPredictor([{}]), DECODERS.make(decoder), **parts)]


def test_a_mask_id_in_the_prompt_is_given_text_and_stays() -> None:
    state = DenoisingState.start([[0, 9, 0]], 2, mask_id=9)
    taken = steps(ScriptedPredictor([{3: (1, 0.9), 4: (2, 0.9)}]), DECODERS.make("threshold"), state=state)
    assert len(taken) == 1
    assert taken[0].after.tokens.tolist() == [[0, 9, 0, 1, 2]]


def test_surplus_steps_cost_no_forward() -> None:
    assert counts("low-confidence(steps=12)", length=8) == [1] * 8
    assert counts("low-confidence(steps=4)", length=10) == [3, 3, 2, 2]


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_one_step_per_block_works_with_every_cache(cache: str) -> None:
    assert counts("low-confidence(steps=2)", schedule="sequential(block_length=4)", cache=cache) == [4, 4]


def test_a_block_finished_by_its_opening_pass_costs_no_second_one() -> None:
    decoder = DECODERS.make("threshold(threshold=0.0)")
    assert len(trace(ScriptedPredictor([{}]), decoder, length=8, schedule=Sequential(4), cache="dual")) == 2


def test_forbidding_the_end_token_leaves_the_end_of_turn() -> None:
    answer = [0.1, 0.2, 0.4, 0.3, 0.0]  # 2 = end of text, 3 = end of turn
    free, forbidden = (
        steps(
            ScriptedPredictor([{1: answer}], vocab_size=5, end_ids=(2, 3)),
            DECODERS.make("threshold"),
            length=1,
            sampling=Sampling(forbid=forbid, precision=torch.float64),
        )[0].prediction
        for forbid in ((), (2,))
    )
    assert (int(free.tokens[0, 1]), int(forbidden.tokens[0, 1])) == (2, 3)
    assert float(forbidden.confidence[0, 1]) == pytest.approx(0.5)  # 0.3 of the remaining 0.6


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_distrusted_end_tokens_are_predicted_but_committed_last(temperature: float) -> None:
    table = [{1: [0.0, 0.1, 0.9, 0.0, 0.0], 2: [0.4, 0.3, 0.0, 0.3, 0.0], 3: [0.0, 0.1, 0.0, 0.9, 0.0]}]
    predictor = ScriptedPredictor(table, vocab_size=5, end_ids=(2, 3))
    sampling = Sampling(temperature=temperature, distrust=(2, 3), precision=torch.float64)
    options = {"length": 3, "sampling": sampling}
    assert trace(predictor, DECODERS.make("low-confidence"), **options) == [[(2, 0)], [(1, 2)], [(3, 3)]]
    first = steps(predictor, DECODERS.make("low-confidence"), **options)[0].prediction
    assert first.confidence[0, 1:].tolist() == pytest.approx([0.0, 4 / 7, 0.0])


def test_factor_follows_the_paper_and_compat_commits_the_last_one_too() -> None:
    """f = 0.5: (n + 1) * (1 - c_n) is 0.2, 0.6, 1.2, 2.0, so one slot passes; the next pass has 0.8, 0.7, 0.6 left."""
    paper, released = DECODERS.make("factor(factor=0.5)"), DECODERS.make("factor(factor=0.5, compat='fast-dllm')")
    predictor = ScriptedPredictor(FALLING)
    assert [len(step) for step in trace(predictor, paper, length=4)] == [1, 1, 1, 1]
    assert [len(step) for step in trace(predictor, released, length=4)] == [1, 1, 2]  # with two left: both
    assert [len(step) for step in trace(predictor, DECODERS.make("factor(factor=1.21)"), length=4)] == [3, 1]


def test_dreams_timetable_rounds_down_and_ours_is_even() -> None:
    for name in ("maskgit-plus", "topk-margin", "entropy"):
        assert counts(f"{name}(steps=8, compat='dream')") == [0, 1, 1, 1, 1, 1, 1, 2]
        assert counts(f"{name}(steps=8)") == [1] * 8
        assert counts(f"{name}(steps=4, compat='dream')") == [1, 2, 2, 3]
        assert counts(f"{name}(steps=4)") == [2] * 4


def test_confidence_is_raw_or_of_the_distribution_that_was_drawn_from() -> None:
    """Probabilities 0.64, 0.16, 0.16, 0.04 at temperature 2 have the ratios 0.8 : 0.4 : 0.4 : 0.2."""
    predictor = ScriptedPredictor([{1: [0.64, 0.16, 0.16, 0.04, 0.0]}], vocab_size=5)
    raw, drawn = (
        steps(
            predictor,
            DECODERS.make("threshold"),
            length=1,
            sampling=Sampling(temperature=2.0, confidence=kind, precision=torch.float64),  # type: ignore[arg-type]
        )[0].prediction
        for kind in ("raw", "drawn")
    )
    assert int(raw.tokens[0, 1]) == int(drawn.tokens[0, 1])
    token = int(raw.tokens[0, 1])
    assert float(raw.confidence[0, 1]) == pytest.approx([0.64, 0.16, 0.16, 0.04][token])
    assert float(drawn.confidence[0, 1]) == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9][token])


def test_a_paced_threshold_is_never_ahead_of_its_plan() -> None:
    predictor = ScriptedPredictor([{slot: (1, 0.95) for slot in range(1, 9)}])
    assert len(trace(predictor, DECODERS.make("threshold"), length=8)) == 1
    assert [len(step) for step in trace(predictor, DECODERS.make("threshold(steps=4)"), length=8)] == [2, 2, 2, 2]
    assert len(trace(predictor, DECODERS.make("threshold(steps=8)"), length=8)) == 8


def test_the_first_slot_of_a_block_alone_only_in_compat() -> None:
    table = [{1: (1, 0.3), 2: (2, 0.95), 3: (3, 0.95), 4: (4, 0.95)}]
    ours, released = (
        trace(ScriptedPredictor(table, shift=1), DECODERS.make(spec), length=4, schedule=Sequential(4), cache="dual")
        for spec in ("threshold", "threshold(compat='fast-dllm-dream')")
    )
    assert ours == [[(2, 2), (3, 3), (4, 4)], [(1, 1)]]
    assert released == [[(1, 1)], [(2, 2), (3, 3), (4, 4)]]


def test_the_row_that_speaks_for_the_first_slot_is_computed_too() -> None:
    """A window of four slots behind a prompt of two, everything else frozen: five rows with shift 1."""
    state = DenoisingState.start([[0, 0]], 8, mask_id=9)
    window = Sequential(4).window(state, None)
    for shift, rows in ((0, [2, 3, 4, 5]), (1, [1, 2, 3, 4, 5])):
        work = plan(plain_view(state), window, window.open, ~window.open, shift)
        assert work.rows.tolist() == [rows]
        assert work.rows[0, work.speakers[0]].tolist() == [slot - shift for slot in (2, 3, 4, 5)]


def test_limited_blocks_leave_masks_that_only_a_later_opening_pass_may_fill() -> None:
    """Blocks of 4 with one pass each: slot 2 is not sure in time, and has one more chance when the next block opens."""

    def unsure_at_slot_2(tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, 10, dtype=torch.float64)
        logits[..., 1] = 9.0
        logits[:, 2, 1] = 9.0 if bool((tokens[:, 8] != 9).all()) else 0.5
        return logits

    predictor, decoder = FunctionPredictor(unsure_at_slot_2), DECODERS.make("threshold")
    limited = steps(predictor, decoder, length=8, schedule=Sequential(4, block_steps=1))
    assert len(limited) == 2
    assert limited[-1].after.masked[0].nonzero()[:, 0].tolist() == [2]  # unsure twice, and no pass is left
    full = steps(predictor, decoder, length=8, schedule=Sequential(4))
    assert len(full) == 3 and not full[-1].after.masked.any()


@pytest.mark.parametrize("spec", contract.EVERY_DECODER)
def test_t7_a_run_that_was_given_up_leaves_nothing_behind(spec: str) -> None:
    """The same decoder, schedule and predictor objects serve a second run as if it were the first."""
    predictor, decoder, schedule = ScriptedPredictor(FALLING), DECODERS.make(spec), Sequential(2)

    def begin() -> Iterator[Step]:
        state = DenoisingState.start([[0]], 4, mask_id=9, seeds=3)
        parts = {"schedule": schedule, "cache": CACHES.make("dual"), "stop": Stopping("none")}
        return denoise(predictor, state, decoder, **parts)  # type: ignore[arg-type]

    fresh = [step.move.commit.tolist() for step in begin()]
    given_up = begin()
    next(given_up), next(given_up)
    given_up.close()
    assert [step.move.commit.tolist() for step in begin()] == fresh
