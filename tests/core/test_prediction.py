"""Summaries of a prediction, worked out from small distributions."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.core import rows
from unmask.core.canvas import ForwardPlan
from unmask.core.prediction import Prediction
from unmask.core.sampling import Noise, Sampling

Distribution = list[float]


def predict(asked: list[dict[int, Distribution]], num_slots: int = 5, seed: int = 0, **options: Any) -> Prediction:
    """One prediction from a distribution per asked slot; rows may ask about different numbers of slots."""
    widest = max(map(len, asked))
    vocab = len(next(iter(asked[0].values())))
    logits, slots = torch.zeros(len(asked), widest, vocab, dtype=torch.float64), []
    for row, answers in enumerate(asked):
        first = next(iter(answers), 0)
        slots.append([*answers, *[first] * (widest - len(answers))])  # padding repeats the first, as `plan` has it
        for place, slot in enumerate(slots[-1] if answers else []):
            logits[row, place] = torch.tensor(answers[slot], dtype=torch.float64).log()
    places = torch.tensor(slots)
    count = torch.tensor([len(answers) for answers in asked])
    visible = torch.ones(len(asked), num_slots, dtype=torch.bool)
    work = ForwardPlan(places, count, places, count, places, visible, everything=False)
    noise = Noise(torch.arange(len(asked)) + seed, torch.zeros(len(asked), dtype=torch.long))
    return Prediction(logits, work, num_slots, Sampling(**({"precision": torch.float64} | options)), noise)


def row(values: Tensor, number: int = 0) -> Any:
    return pytest.approx(values[number].tolist(), nan_ok=False)


@pytest.mark.parametrize(
    ("distribution", "nats"), [([0.8, 0.2], 0.5004), ([0.9, 0.1], 0.3251), ([0.95, 0.05], 0.1985), ([1.0, 0.0], 0.0)]
)
def test_entropy_is_in_nats(distribution: Distribution, nats: float) -> None:
    assert float(predict([{2: distribution}]).entropy[0, 2]) == pytest.approx(nats, abs=5e-5)


def test_entropy_of_a_flat_distribution_is_the_log_of_its_size() -> None:
    assert float(predict([{0: [0.25] * 4}]).entropy[0, 0]) == pytest.approx(log(4))


def test_margin_is_the_lead_of_the_best_over_the_second() -> None:
    assert row(predict([{2: [0.2, 0.5, 0.1, 0.2]}]).margin) == [0, 0, 0.3, 0, 0]


def test_margin_of_two_equals_is_0_and_of_a_certainty_is_1() -> None:
    assert row(predict([{0: [0.5, 0.5, 0.0], 1: [0.0, 1.0, 0.0]}]).margin) == [0, 1, 0, 0, 0]


def test_slots_that_nobody_asked_about_have_no_score() -> None:
    said = predict([{1: [0.7, 0.3], 4: [0.4, 0.6]}, {2: [0.9, 0.1]}])
    assert said.known.tolist() == [[False, True, False, False, True], [False, False, True, False, False]]
    assert said.tokens.tolist() == [[-1, 0, -1, -1, 1], [-1, -1, 0, -1, -1]]
    assert row(said.confidence) == [0, 0.7, 0, 0, 0.6] and row(said.confidence, 1) == [0, 0, 0.9, 0, 0]
    assert said.entropy.isinf().tolist() == (~said.known).tolist()
    assert row(said.margin, 1) == [0, 0, 0.8, 0, 0]


def test_a_row_that_asks_nothing_knows_nothing() -> None:
    said = predict([{1: [0.7, 0.3]}, {}])
    assert said.known.sum(-1).tolist() == [1, 0]
    assert said.tokens[1].tolist() == [-1] * 5 and row(said.confidence, 1) == [0] * 5


def test_extra_slots_have_scores_behind_the_canvas() -> None:
    said = predict([{1: [0.7, 0.3], 6: [0.4, 0.6]}], num_slots=7)
    assert said.tokens.tolist() == [[-1, 0, -1, -1, -1, -1, 1]]


def test_confidence_in_other_tokens_than_the_candidates() -> None:
    said = predict([{1: [0.7, 0.2, 0.1], 2: [0.1, 0.6, 0.3]}])
    assert row(said.confidence_in(torch.tensor([[-1, 2, 0, -1, -1]]))) == [0, 0.1, 0.1, 0, 0]


def test_a_ruled_out_token_has_probability_0_and_harms_no_summary() -> None:
    said = predict([{0: [0.75, 0.25, 0.0]}])
    assert float(said.confidence_in(torch.full((1, 5), 2))[0, 0]) == 0.0
    assert float(said.entropy[0, 0]) == pytest.approx(0.5623, abs=5e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_scores_have_the_precision_asked_for(precision: torch.dtype) -> None:
    said = predict([{0: [0.75, 0.25]}], precision=precision)
    assert said.confidence.dtype == said.entropy.dtype == said.margin.dtype == precision


# Drawing -----------------------------------------------------------------------------------------------------------

SKEWED = [0.5, 0.3, 0.2]


def drawn_at(confidence: str, **options: Any) -> tuple[int, float]:
    """Candidate of slot 0 and its confidence. Seed 4 draws the second token at the temperatures used here."""
    said = predict([{0: SKEWED}], seed=4, confidence=confidence, **options)
    return int(said.tokens[0, 0]), float(said.confidence[0, 0])


def test_raw_confidence_is_that_of_the_model_whatever_the_temperature() -> None:
    token, confidence = drawn_at("raw", temperature=2.0)
    assert token != 0, "the test wants a draw that is not the favourite"
    assert confidence == pytest.approx(SKEWED[token])


def test_drawn_confidence_is_that_of_the_tempered_distribution() -> None:
    token, confidence = drawn_at("drawn", temperature=2.0)
    roots = torch.tensor(SKEWED).sqrt()
    assert confidence == pytest.approx(float(roots[token] / roots.sum()))


def test_drawn_confidence_is_that_of_the_truncated_distribution() -> None:
    token, confidence = drawn_at("drawn", temperature=1.0, top_k=2)
    assert confidence == pytest.approx(SKEWED[token] / 0.8)


def test_drawn_confidence_is_truncated_at_temperature_0_too() -> None:
    """Dream's sampler cuts before it looks at the temperature."""
    assert drawn_at("drawn", top_k=2) == (0, pytest.approx(0.625))
    assert drawn_at("drawn", top_p=0.4) == (0, pytest.approx(1.0))


def test_raw_confidence_ignores_truncation() -> None:
    assert drawn_at("raw", top_k=2) == (0, pytest.approx(0.5))


def test_a_distrusted_token_may_be_drawn_with_confidence_0_and_the_others_share_its_part() -> None:
    said = predict([{0: [0.5, 0.4, 0.1], 1: [0.2, 0.5, 0.3]}], distrust=(0,))
    assert said.tokens[0, :2].tolist() == [0, 1]
    assert row(said.confidence) == [0, 0.625, 0, 0, 0]
    assert float(said.margin[0, 1]) == pytest.approx(0.25)


# Holding back ------------------------------------------------------------------------------------------------------


def test_a_held_slot_is_not_known_and_keeps_its_scores() -> None:
    said = predict([{1: [0.7, 0.3], 2: [0.4, 0.6]}])
    held = said.hold(torch.tensor([[False, True, False, False, False]]))
    assert held.known.tolist() == [[False, False, True, False, False]]
    assert held.tokens.tolist() == said.tokens.tolist()
    assert row(held.confidence) == [0, 0.7, 0.6, 0, 0]
    assert said.known.tolist() == [[False, True, True, False, False]]


def test_holding_does_not_forget_what_was_known_before_it_was_read() -> None:
    said = predict([{1: [0.7, 0.3]}])
    assert said.known.any()  # computed before the hold
    assert not said.hold(torch.ones(1, 5, dtype=torch.bool)).known.any()


# Rows --------------------------------------------------------------------------------------------------------------


def test_a_prediction_kept_in_a_memory_follows_its_rows() -> None:
    said = predict([{1: [0.7, 0.3], 4: [0.4, 0.6]}, {2: [0.9, 0.1]}], temperature=1.0)
    read = said.tokens, said.confidence, said.entropy  # computed for both rows before one leaves
    taken = rows.take(said, torch.tensor([1]))
    for value, whole in zip((taken.tokens, taken.confidence, taken.entropy), read, strict=True):
        assert torch.equal(value, whole[1:])


def test_without_extra_slots_a_prediction_is_that_of_the_answer_alone() -> None:
    """Slots 3 and 4 are extra. Rows ask about different numbers of slots, and the last one about no answer slot."""
    answers = [{0: [0.7, 0.3], 2: [0.4, 0.6], 3: [0.9, 0.1]}, {1: [0.2, 0.8], 4: [0.6, 0.4]}, {3: [0.5, 0.5]}]
    said = predict(answers, temperature=0.9)  # type: ignore[arg-type]
    held = torch.tensor([[True, False, False, False, False]]).expand(3, -1)
    wide = replace(said, targets=torch.tensor([[0, -1], [-1, 1], [2, -1]]), held=held)
    plain = wide.without_extras()
    assert (plain.num_slots, plain.targets, plain.logits.shape[1]) == (3, None, 2)
    for name in ("tokens", "confidence", "entropy", "known"):
        assert torch.equal(getattr(plain, name), getattr(wide, name)[:, :3]), name
    assert torch.equal(plain.confidence_in(plain.tokens.clamp_min(0)), plain.confidence)
    assert plain.known.tolist() == [[False, False, True], [False, True, False], [False, False, False]]
    assert plain.without_extras() is plain
