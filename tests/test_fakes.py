"""The fakes are what other tests are worked out with, so they have to be right themselves."""

import pytest
import torch

from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.core.canvas import plain_view
from unmask.core.sampling import Sampling
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders.threshold import Threshold

NEVER = 2.0  # a threshold above every confidence: one slot per step, the most confident first


@pytest.mark.parametrize("vocab_size", [4, 10, 64])
@pytest.mark.parametrize("confidence", [0.5, 0.55, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0])
def test_a_scripted_confidence_is_met_and_never_missed_below(vocab_size: int, confidence: float) -> None:
    predictor = ScriptedPredictor([{1: (1, confidence), 2: (0, confidence)}], vocab_size=vocab_size)
    prediction = steps(predictor, Threshold(NEVER), length=2)[0].prediction
    assert prediction.tokens[0, 1:].tolist() == [1, 0]
    got = prediction.confidence[0, 1:]
    assert got.dtype == torch.float64
    assert ((got >= confidence) & (got < confidence + 1e-14)).all()


@pytest.mark.parametrize("vocab_size", [4, 10, 16])
def test_a_half_is_met_exactly(vocab_size: int) -> None:
    prediction = steps(ScriptedPredictor([{1: (1, 0.5)}], vocab_size=vocab_size), Threshold(NEVER), length=1)[
        0
    ].prediction
    assert float(prediction.confidence[0, 1]) == 0.5


def test_what_is_left_is_spread_evenly_and_the_mask_gets_nothing() -> None:
    prediction = steps(ScriptedPredictor([{1: (1, 0.3)}], vocab_size=6), Threshold(NEVER), length=1)[0].prediction
    torch.testing.assert_close(
        prediction.logits.softmax(-1)[0, 0], torch.tensor([0.175, 0.3, 0.175, 0.175, 0.175, 0]).double()
    )


def test_a_slot_outside_the_script_is_flat() -> None:
    prediction = steps(ScriptedPredictor([{}], vocab_size=6), Threshold(NEVER), length=1)[0].prediction
    assert float(prediction.confidence[0, 1]) == pytest.approx(0.2)
    assert int(prediction.tokens[0, 1]) == 0


def test_entries_follow_the_forward_passes_and_the_last_one_repeats() -> None:
    predictor = ScriptedPredictor([{1: (1, 0.6), 2: (2, 0.5)}, {2: (3, 0.6), 3: (4, 0.5)}])
    assert trace(predictor, Threshold(NEVER), length=3) == [[(1, 1)], [(2, 3)], [(3, 4)]]


def test_every_run_starts_at_the_first_entry() -> None:
    predictor = ScriptedPredictor([{1: (1, 0.6)}, {2: (3, 0.6)}])
    assert trace(predictor, Threshold(NEVER), length=2) == trace(predictor, Threshold(NEVER), length=2)


def test_rows_may_have_scripts_of_their_own_and_keep_them_when_others_leave() -> None:
    state = DenoisingState.start([[0], [0]], [1, 2], mask_id=9)
    predictor = ScriptedPredictor([[{1: (1, 0.6)}], [{1: (2, 0.6)}, {2: (3, 0.6)}]])
    assert trace(predictor, Threshold(NEVER), state=state, row=0) == [[(1, 1)]]
    assert trace(predictor, Threshold(NEVER), state=state, row=1) == [[(1, 2)], [(2, 3)]]


def test_a_whole_distribution_may_be_given_and_a_banned_mask_gets_nothing() -> None:
    answer = [0.125, 0.25, 0.125, 0.5]
    asked = Sampling(precision=torch.float64)
    free = steps(
        ScriptedPredictor([{1: answer}], vocab_size=4, banned_ids=()), Threshold(NEVER), length=1, sampling=asked
    )
    assert int(free[0].prediction.tokens[0, 1]) == 3
    banned = steps(ScriptedPredictor([{1: answer}], vocab_size=4), Threshold(NEVER), length=1, sampling=asked)
    assert int(banned[0].prediction.tokens[0, 1]) == 1
    assert float(banned[0].prediction.confidence[0, 1]) == pytest.approx(0.5)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_neither_shift_nor_cache_changes_an_answer(shift: int, cache: str) -> None:
    predictor = ScriptedPredictor([{2: (4, 0.9), 3: (5, 0.9), 4: (1, 0.5)}, {4: (6, 0.9)}], shift=shift)
    assert trace(predictor, Threshold(0.9), prompt=[0, 0], length=3, cache=cache) == [[(2, 4), (3, 5)], [(4, 6)]]


def test_what_was_shown_and_asked_can_be_looked_up() -> None:
    predictor = ScriptedPredictor([{1: (1, 0.6)}], shift=1)
    steps(predictor, Threshold(NEVER), length=2)
    canvas, work = predictor.seen[1]
    assert canvas.tokens.tolist() == [[0, 1, 9]]
    assert work.asked.tolist() == [[2]]
    assert work.speakers.tolist() == [[1]]


def test_a_function_answers_to_what_is_shown() -> None:
    def left_neighbour_plus_one(tokens: torch.Tensor) -> torch.Tensor:
        left = tokens.roll(1, dims=-1)
        sure = torch.where(left == 9, 0.0, 5.0)
        return torch.nn.functional.one_hot((left + 1) % 10, 10) * sure[..., None]

    predictor = FunctionPredictor(left_neighbour_plus_one)
    assert trace(predictor, Threshold(0.9), prompt=[3], length=3) == [[(1, 4)], [(2, 5)], [(3, 6)]]


def test_end_tokens_are_known_to_the_stopping_rule() -> None:
    predictor = ScriptedPredictor([{1: (8, 0.9)}], end_ids=(8,))
    taken = steps(predictor, Threshold(0.9), length=5, stop=Stopping("tail"))
    assert len(taken) == 1 and taken[0].filled.sum() == 4


def test_extra_slots_come_behind_the_answer() -> None:
    predictor = ScriptedPredictor([{1: (1, 0.6), 7: (2, 0.9)}])
    state = DenoisingState.start([[0]], 2, mask_id=9)
    store = predictor.open_store(state, None)
    assert predictor.everywhere(plain_view(state), store).shape == (1, 3, 10)  # slot 7 is ignored while it is not there
