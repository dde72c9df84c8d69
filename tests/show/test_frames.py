"""Frames from steps and from records, worked out on paper with a tokenizer of single bytes."""

from dataclasses import dataclass
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import unmask
from fakes import ScriptedPredictor, steps
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.decoders import Decoder
from unmask.decoders.threshold import Threshold
from unmask.errors import RequestError
from unmask.generation import Recipe, run, start_state
from unmask.models.text import Text
from unmask.show.frames import Frame, Framer, SlotState, frames

END, MASK, SIZE = 256, 257, 258
COMMITTED, FILLED, GIVEN, MASKED = SlotState.COMMITTED, SlotState.FILLED, SlotState.GIVEN, SlotState.MASKED


@pytest.fixture(scope="module")
def text() -> Text:
    """A token per byte, and two control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: token for token, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|end|>", "<|mask|>")])
    return Text(tokenizer)


def film(
    text: Text, table: list[dict[int, tuple[int, float]]], prompt: str, length: int, **options: Any
) -> list[Frame]:
    """Frames of a scripted run; the table says what each forward pass answers, by slot."""
    predictor = ScriptedPredictor(table, vocab_size=SIZE, mask_id=MASK, end_ids=(END,))
    start = DenoisingState.start([text.encode(prompt)], length, mask_id=MASK)
    framer = Framer(start, text, end_ids=(END,))
    taken = steps(predictor, options.pop("decoder", Threshold(0.9)), state=start, **options)
    return [framer.first(), *(frame for step in taken if (frame := framer.add(step)))]


def shown(frame: Frame) -> str:
    return "".join("_" if slot.state is MASKED else slot.text for slot in frame.slots)


def test_a_run_is_one_frame_before_it_and_one_per_step(text: Text) -> None:
    a, b = text.encode("ab")
    film_ = film(text, [{2: (b, 0.95), 1: (a, 0.5)}, {1: (a, 0.6)}], "?", 2)
    assert [shown(frame) for frame in film_] == ["?__", "?_b", "?ab"]
    assert [frame.nfe for frame in film_] == [0, 1, 2]
    assert [frame.committed for frame in film_] == [0, 1, 1]
    assert [frame.num_masked for frame in film_] == [2, 1, 0]
    assert [frame.rows_computed for frame in film_] == [0, 3, 6]
    assert [round(frame.tpf, 3) for frame in film_] == [0.0, 1.0, 1.0]


def test_a_slot_knows_when_and_how_surely_it_was_committed(text: Text) -> None:
    a, b = text.encode("ab")
    _, first, last = film(text, [{2: (b, 0.95)}, {1: (a, 0.6)}], "?", 2)
    given, masked, committed = first.slots
    assert (given.state, given.committed_at, given.confidence, given.open) == (GIVEN, None, None, False)
    assert (masked.state, masked.committed_at, masked.open, masked.fresh) == (MASKED, None, True, False)
    assert (committed.state, committed.committed_at, committed.fresh) == (COMMITTED, 0, True)
    assert committed.confidence == pytest.approx(0.95)
    assert [slot.fresh for slot in last.slots] == [False, True, False]
    assert last.slots[1].confidence == pytest.approx(0.6)
    assert last.open_range == (0, 1)


def test_a_character_of_several_tokens_appears_when_its_last_byte_does(text: Text) -> None:
    smile = text.encode("\U0001f642")
    assert len(smile) == 4
    table = [{1 + place: (smile[place], 0.95)} for place in (0, 1, 3, 2)]
    film_ = film(text, table, "?", 4)
    assert shown(film_[-1]) == "?\U0001f642"
    assert [slot.text for slot in film_[-1].slots] == ["?", "", "", "", "\U0001f642"]
    assert not any(slot.control for slot in film_[-1].slots)


def test_half_a_character_does_not_spoil_its_neighbours(text: Text) -> None:
    first, second, a = text.encode("\u00e9a")
    film_ = film(text, [{1: (first, 0.95), 3: (a, 0.95)}, {2: (second, 0.95)}], "?", 3)
    assert film_[1].slots[3].text == "a"
    assert shown(film_[-1]) == "?\u00e9a"


def test_the_prompt_is_not_joined_with_the_answer(text: Text) -> None:
    """A broken last byte of the prompt would otherwise swallow the first token of the answer."""
    first, _ = text.encode("\u00e9")
    start = DenoisingState.start([[first]], 1, mask_id=MASK)
    predictor = ScriptedPredictor([{1: (text.encode("a")[0], 0.95)}], vocab_size=SIZE, mask_id=MASK)
    framer = Framer(start, text)
    frame = framer.add(steps(predictor, Threshold(0.9), state=start)[0])
    assert frame is not None and [slot.text for slot in frame.slots] == ["\ufffd", "a"]


def test_what_lies_behind_the_end_token_is_filled(text: Text) -> None:
    a = text.encode("a")[0]
    *_, last = film(text, [{1: (a, 0.95), 2: (END, 0.95)}], "?", 5, stop=Stopping("tail"))
    assert [slot.state for slot in last.answer] == [COMMITTED, COMMITTED, FILLED, FILLED, FILLED]
    assert [slot.ends for slot in last.answer] == [False, True, True, True, True]
    assert last.answer[1].text == "<|end|>" and last.answer[1].control
    assert last.answer[2].confidence is None
    assert last.tpf == 2.0 and last.committed == 2


def test_tpf_counts_nothing_behind_the_end_token(text: Text) -> None:
    a = text.encode("a")[0]
    *_, last = film(text, [{1: (a, 0.95), 2: (END, 0.95), 3: (END, 0.95), 4: (a, 0.95)}], "?", 4)
    assert last.tpf == 2.0


@dataclass(frozen=True, slots=True)
class Undoing(Decoder):
    """Step 0 commits the first slot, step 1 the second and takes the first back, step 2 the first."""

    revokes = True

    def decide(self, state: DenoisingState, window: Any, prediction: Any, memory: Any) -> Move:
        place = state.slots - state.prompt_length[:, None]
        step = state.step[:, None]
        commit = self.eligible(state, window, prediction) & (place == step % 2)
        return Move(commit, prediction.tokens, (place == 0) & (step == 1))


def test_a_revoked_slot_is_masked_again(text: Text) -> None:
    a, b, c = text.encode("abc")
    film_ = film(text, [{1: (a, 0.7)}, {2: (b, 0.8)}, {1: (c, 0.9)}], "?", 2, decoder=Undoing())
    assert [shown(frame) for frame in film_] == ["?__", "?a_", "?_b", "?cb"]
    assert film_[2].slots[1].revoked and film_[2].revoked == 1
    assert film_[3].slots[1].confidence == pytest.approx(0.9)


@pytest.mark.parametrize("decoder", ["threshold(threshold=0.5)", "low-confidence"])
def test_a_record_gives_the_frames_of_the_run_itself(llada: unmask.Model, decoder: str) -> None:
    state = start_state(llada, ["sort it", "a longer prompt"], [40, 50])
    recipe = Recipe.of(decoder, "sequential(block_length=8)")
    framers = [Framer(state, llada.text, row=row, end_ids=llada.facts.end_ids) for row in range(2)]
    live = [[framer.first()] for framer in framers]
    taken = list(run(llada, state, recipe))
    for step in taken:
        for row, framer in enumerate(framers):
            frame = framer.add(step)
            if frame is not None:
                live[row].append(frame)
    record = Trajectory.collect(state, taken, recipe.specs())
    for row in range(2):
        assert list(frames(record, llada.text, row=row, end_ids=llada.facts.end_ids)) == live[row]
        assert len(live[row]) == record.nfe(row) + 1


def test_the_last_frame_shows_the_answer(llada: unmask.Model) -> None:
    [answer] = unmask.generate(llada, ["sort the list"], length=48)
    assert answer.trajectory is not None
    *_, last = frames(answer.trajectory, llada.text, end_ids=llada.facts.end_ids)
    assert "".join(slot.text for slot in last.answer if not slot.control) == answer.text
    assert (last.nfe, last.tpf, last.rows_computed) == (answer.nfe, answer.tpf, answer.rows_computed)


def test_an_unknown_schedule_marks_nothing_as_open(llada: unmask.Model) -> None:
    [answer] = unmask.generate(llada, ["sort"], length=8)
    record = answer.trajectory
    assert record is not None
    record.facts["schedule"] = "of-a-stranger"
    assert all(frame.open_range is None for frame in frames(record, llada.text))
    assert any(frame.open_range for frame in frames(record, llada.text, schedule="whole"))


def test_a_row_that_is_not_there_is_refused(llada: unmask.Model) -> None:
    with pytest.raises(RequestError, match="no row 3"):
        Framer(start_state(llada, ["a"], 4), llada.text, row=3)


def test_a_step_without_the_row_gives_no_frame(llada: unmask.Model) -> None:
    state = start_state(llada, ["a", "b"], [2, 30])
    framer = Framer(state, llada.text, row=0)
    made = [framer.add(step) for step in run(llada, state, Recipe.of("low-confidence", stop="none"))]
    assert made[0] is not None and made[-1] is None


def test_infilling_shows_given_text_on_both_sides(text: Text) -> None:
    a, b = text.encode("ab")
    start = DenoisingState.from_canvas([[a, None, b]], mask_id=MASK)
    framer = Framer(start, text)
    assert [slot.state for slot in framer.first().slots] == [GIVEN, MASKED, GIVEN]
    assert len(framer.first().answer) == 1
