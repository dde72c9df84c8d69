"""DC-Leap's run from the left and its drafts: worked out by hand, and what has to hold in every run."""

from math import ceil

import pytest
import torch
from torch import Tensor

import contract
from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.caches import CACHES
from unmask.core.canvas import Canvas
from unmask.core.compose import check_composition
from unmask.core.denoise import Step
from unmask.core.sampling import Sampling
from unmask.core.schedules import Pipelined, Sequential, Sliding, Whole
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS
from unmask.decoders.dc_leap import DcLeap
from unmask.decoders.quota import LowConfidence
from unmask.errors import CompositionError
from unmask.generation import Recipe
from unmask.models.guidance import Guided

M = 9  # the mask token of the fakes


def guesses(*confidences: float, first: int = 1, token: int = 2) -> dict[int, tuple[int, float]]:
    """One token with the given confidences, from slot `first` on."""
    return {slot: (token, confidence) for slot, confidence in enumerate(confidences, start=first)}


def shown(predictor: ScriptedPredictor | FunctionPredictor, row: int = 0) -> list[list[int]]:
    """What every forward pass was shown."""
    return [canvas.tokens[row].tolist() for canvas, _ in predictor.seen]


def committed(predictor: ScriptedPredictor, decoder: DcLeap, length: int, window: int, **options: object) -> list:
    """Slots per step, counted from 0 behind a prompt of one token."""
    taken = trace(predictor, decoder, length=length, schedule=Sliding(window), **options)  # type: ignore[arg-type]
    return [[slot - 1 for slot, _ in step] for step in taken]


def test_without_drafts_every_open_block_has_a_run_of_its_own() -> None:
    """Blocks of 3. The second opens when a third of the first is there; its run goes on where the first is forced."""
    script = [
        guesses(0.90, 0.50, 0.95),
        {**guesses(0.60, 0.99, first=2, token=4), **guesses(0.9, 0.8, 0.5, first=4, token=5)},
        {**guesses(0.99, first=3, token=6), **guesses(0.3, first=6, token=6)},
        guesses(0.3, first=6, token=7),
    ]
    predictor = ScriptedPredictor(script, vocab_size=10)
    schedule = Pipelined(block_length=3, add=0.3, force=1.0)
    taken = trace(predictor, DcLeap(commit=0.7, draft=1.0), length=6, schedule=schedule)
    assert taken == [[(1, 2)], [(2, 4), (4, 5), (5, 5)], [(3, 6)], [(6, 7)]]


# By hand -------------------------------------------------------------------------------------------------------------


def test_a_run_with_drafts_step_by_step() -> None:
    """8 slots, a window of 3: runs of 2, 1 (forced), 3 and 2."""
    script = [
        guesses(0.90, 0.80, 0.50, 0.99, 0.60, 0.985),
        {**guesses(0.60, 0.99, 0.99, first=3, token=4), **guesses(0.995, 0.97, 0.99, first=6, token=3)},
        guesses(0.99, 0.99, 0.71, 0.5, 0.5, first=4, token=5),
        guesses(0.9, 0.9, first=7, token=6),
    ]
    predictor = ScriptedPredictor(script, vocab_size=10)
    taken = trace(predictor, DcLeap(commit=0.7, draft=0.98), length=8, schedule=Sliding(3))
    assert taken == [[(1, 2), (2, 2)], [(3, 4)], [(4, 5), (5, 5), (6, 5)], [(7, 6), (8, 6)]]
    assert shown(predictor) == [
        [0, M, M, M, M, M, M, M, M],
        [0, 2, 2, M, M, M, 2, M, M],  # drafts of slots 4 and 6; slot 4 has come into the window and shows a mask
        [0, 2, 2, 4, M, M, M, M, 3],  # slot 6 too; the newer draft of slot 8
        [0, 2, 2, 4, 5, 5, 5, M, M],  # the last window: nothing lies behind it
    ]


def test_the_bound_itself_ends_the_run_and_makes_no_draft() -> None:
    half, more, mask = 0.5, 0.5625, 3
    predictor = ScriptedPredictor([guesses(more, half, more, more, half, more), {}], vocab_size=4)
    taken = steps(predictor, DcLeap(commit=0.5, draft=0.5), length=6, schedule=Sliding(3))
    assert float(taken[0].prediction.confidence[0, 2]) == half, "the test wants the bound itself"
    assert taken[0].move.commit[0].nonzero()[:, 0].tolist() == [1]
    assert shown(predictor)[1] == [0, 2, mask, mask, mask, mask, 2]  # slot 4 is in the window by now


def test_the_first_slot_is_committed_whatever_its_confidence() -> None:
    predictor = ScriptedPredictor([guesses(0.2, 0.9, 0.9)], vocab_size=10)
    assert committed(predictor, DcLeap(), 3, 3) == [[0], [1, 2]]


def test_a_run_ends_at_the_windows_end() -> None:
    predictor = ScriptedPredictor([guesses(*[0.95] * 7)], vocab_size=10)
    assert committed(predictor, DcLeap(), 7, 3) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_draft_stays_until_a_newer_one_is_sure_enough() -> None:
    predictor = ScriptedPredictor([{6: (2, 0.99)}, {6: (3, 0.9)}, {6: (4, 0.99)}, {}], vocab_size=10)
    trace(predictor, DcLeap(), length=10, schedule=Sliding(3))
    assert [canvas[6] for canvas in shown(predictor)][:5] == [M, 2, 2, M, M]  # the third guess comes from the window


def test_a_newer_draft_replaces_the_older_one() -> None:
    predictor = ScriptedPredictor([{6: (2, 0.99)}, {6: (4, 0.99)}, {}], vocab_size=10)
    trace(predictor, DcLeap(), length=10, schedule=Sliding(3))
    assert [canvas[6] for canvas in shown(predictor)][:4] == [M, 2, 4, M]


def test_a_draft_of_the_mask_token_is_none() -> None:
    """Only where a model may predict the mask: such a guess takes the draft away."""
    mask = [0.0] * M + [1.0]
    predictor = ScriptedPredictor([{6: (2, 0.99)}, {6: mask}, {}], vocab_size=10, banned_ids=())
    trace(predictor, DcLeap(), length=10, schedule=Sliding(3))
    assert [canvas[6] for canvas in shown(predictor)][:3] == [M, 2, M]


def test_the_look_ahead_of_the_paper_has_no_end() -> None:
    predictor = ScriptedPredictor([guesses(*[0.99] * 8), {}], vocab_size=10)
    trace(predictor, DcLeap(commit=1.0, far=True), length=8, schedule=Sliding(2))
    assert shown(predictor)[1] == [0, 2, M, M, 2, 2, 2, 2, 2]
    near = ScriptedPredictor([guesses(*[0.99] * 8), {}], vocab_size=10)
    trace(near, DcLeap(commit=1.0), length=8, schedule=Sliding(2))
    assert shown(near)[1] == [0, 2, M, M, 2, M, M, M, M]


def test_only_the_window_and_the_look_ahead_are_asked_about() -> None:
    predictor = ScriptedPredictor([{}], vocab_size=10)
    trace(predictor, DcLeap(), length=9, schedule=Sliding(2))
    assert [sorted(set(work.asked[0].tolist())) for _, work in predictor.seen[:2]] == [[1, 2, 3, 4], [2, 3, 4, 5]]


# Given text, ragged rows, ends ---------------------------------------------------------------------------------------


def test_a_run_passes_over_given_text() -> None:
    state = DenoisingState.from_canvas([[0, None, None, 7, None, None, None]], mask_id=M)
    predictor = ScriptedPredictor([guesses(0.9, 0.9, 0.2, 0.9, 0.5, 0.9)], vocab_size=10)
    taken = trace(predictor, DcLeap(), state=state, schedule=Sliding(5))
    assert [[slot for slot, _ in step] for step in taken] == [[1, 2, 4], [5], [6]]
    assert all(canvas[3] == 7 for canvas in shown(predictor))


def test_given_text_right_of_the_window_shows_itself_and_no_draft() -> None:
    state = DenoisingState.from_canvas([[0, None, None, 7, None, None, None]], mask_id=M)
    predictor = ScriptedPredictor([guesses(*[0.99] * 6)], vocab_size=10)
    trace(predictor, DcLeap(commit=1.0), state=state, schedule=Sliding(2))
    assert shown(predictor)[1] == [0, 2, M, 7, 2, M, M]


def test_rows_have_windows_of_half_their_own_answer() -> None:
    state = DenoisingState.start([[0], [0, 0, 0]], [8, 4], mask_id=M)
    predictor = ScriptedPredictor([guesses(*[0.9] * 8)], vocab_size=10)
    options = {"state": state, "schedule": Sliding(None)}
    rows = [
        [[slot for slot, _ in step] for step in trace(predictor, DcLeap(), row=row, **options)]  # type: ignore[arg-type]
        for row in range(2)
    ]
    assert rows == [[[1, 2, 3, 4], [5, 6, 7, 8]], [[3, 4], [5, 6]]]


def test_a_row_is_finished_behind_its_end_token() -> None:
    script = [guesses(0.9, 0.9) | {3: (8, 0.9)} | guesses(0.9, 0.9, 0.9, first=4)]
    full = steps(ScriptedPredictor(script, end_ids=(8,)), DcLeap(), length=6, schedule=Sliding(3))
    ended = steps(
        ScriptedPredictor(script, end_ids=(8,)), DcLeap(), length=6, schedule=Sliding(3), stop=Stopping("tail")
    )
    assert (len(full), len(ended)) == (2, 1)
    assert full[-1].after.tokens[0, :4].tolist() == ended[-1].after.tokens[0, :4].tolist() == [0, 2, 2, 8]


def test_a_held_end_token_ends_the_run() -> None:
    script = [guesses(0.9) | {2: (8, 0.9)} | guesses(0.9, first=3)]
    taken = trace(
        ScriptedPredictor(script, end_ids=(8,)),
        DcLeap(),
        length=3,
        schedule=Sliding(3),
        stop=Stopping("none", hold_end=True),
    )
    assert taken == [[(1, 2)], [(2, 8), (3, 2)]]


# Temperature and guidance --------------------------------------------------------------------------------------------


def test_a_drawn_token_is_judged_by_its_own_probability() -> None:
    """A draw that the model thinks unlikely ends the run, whatever its favourite's confidence."""
    state, unlikely = contract.first_state("llada"), 0
    sampling = {"temperature": 1.5}
    for step in contract.steps("llada", state, DcLeap(commit=0.5), Sliding(5), CACHES.make("none"), **sampling):  # type: ignore[arg-type]
        probability = step.prediction.logits.softmax(-1)
        for place in range(len(step.row_ids)):
            asked = step.prediction.work.asked[place, : int(step.prediction.work.num_asked[place])].tolist()
            drawn = step.prediction.tokens[place]
            own = {slot: float(probability[place, rank, drawn[slot]]) for rank, slot in enumerate(asked)}
            window = step.window.must[place].nonzero()[:, 0].tolist()
            run = next((number for number, slot in enumerate(window) if not own[slot] > 0.5), len(window))
            assert step.move.commit[place].nonzero()[:, 0].tolist() == window[: max(run, 1)]
            if run < len(window):
                unlikely += float(probability[place, asked.index(window[run])].max()) > 0.5
    assert unlikely, "no draw differed from a sure favourite"


def test_both_passes_of_guidance_are_shown_the_drafts() -> None:
    inner = ScriptedPredictor([guesses(*[0.99] * 6)], vocab_size=10)
    trace(Guided(inner, 1.0), DcLeap(commit=1.0), length=6, schedule=Sliding(2))
    assert len(inner.seen) == 12
    with_prompt, without = shown(inner)[2:4]
    assert with_prompt == [0, 2, M, M, 2, M, M]
    assert without == [M, 2, M, M, 2, M, M]


# What has to hold in every run ---------------------------------------------------------------------------------------

N, WINDOW = 20, 5


def run(family: str, decoder: DcLeap | LowConfidence, window: int | None = WINDOW, row: int = 0) -> list[Step]:
    state = contract.first_state(family, (row,))
    return list(contract.steps(family, state, decoder, Sliding(window), CACHES.make("none")))


def decided(taken: list[Step]) -> list[tuple[list[int], list[int]]]:
    """Per step: the slots, and the canvas after it."""
    return [(s.move.commit[0].nonzero()[:, 0].tolist(), s.after.tokens[0].tolist()) for s in taken]


def left_to_right(family: str) -> list[tuple[list[int], list[int]]]:
    """The most likely token of the leftmost slot, one per forward, nothing drafted."""
    state = contract.first_state(family, (0,))
    parts = LowConfidence(), Sequential(1), CACHES.make("none")
    return decided(list(contract.steps(family, state, *parts)))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    ("decoder", "window"),
    [
        (DcLeap(commit=1.0, draft=1.0), WINDOW),
        (DcLeap(commit=0.0, draft=0.1), 1),  # a look-ahead of one slot is the next window
        (DcLeap(commit=1.0, draft=0.3), N),  # nothing lies right of the window, so nothing can be drafted
    ],
)
def test_at_its_limits_it_is_the_most_likely_token_from_left_to_right(
    family: str, decoder: DcLeap, window: int
) -> None:
    taken = run(family, decoder, window)
    assert len(taken) == N
    assert decided(taken) == left_to_right(family)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_without_a_look_ahead_the_drafts_bound_means_nothing(family: str) -> None:
    for window, equal in ((contract.LENGTHS[1], True), (4, False)):
        drafting, plain = (run(family, DcLeap(0.5, draft), window, row=1) for draft in (0.1, 1.0))
        assert (decided(drafting) == decided(plain)) is equal


@pytest.mark.parametrize("window", [1, 3, WINDOW, 7, N, 2 * N])
def test_a_commit_of_0_leaps_a_window_per_forward(window: int) -> None:
    assert len(run("llada", DcLeap(commit=0.0), window)) == ceil(N / window)


def test_the_papers_look_ahead_is_the_codes_from_half_of_the_answer_on() -> None:
    near, far = (run("llada", DcLeap(0.5, draft=0.1, far=far), None) for far in (False, True))
    assert decided(near) == decided(far)
    near, far = (run("llada", DcLeap(0.5, draft=0.1, far=far), 3) for far in (False, True))
    assert decided(near) != decided(far)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("window", [2, 4, 6])
def test_a_run_grows_from_the_left_and_drafts_stand_in_the_look_ahead_only(family: str, window: int) -> None:
    drafts = 0
    for row, length in enumerate(contract.LENGTHS):
        taken, start = run(family, DcLeap(commit=0.9, draft=0.15), window, row), len(contract.PROMPTS[row])
        position = start
        for step in taken:
            assert step.before.masked[0].nonzero()[:, 0].tolist() == list(range(position, start + length))
            leap = int(step.move.commit.sum())
            assert 1 <= leap <= window
            drafted = (step.canvas.tokens != step.before.tokens)[0].nonzero()[:, 0].tolist()
            assert all(position + window <= slot < position + 2 * window for slot in drafted)
            drafts += len(drafted)
            position += leap
        assert position == start + length and len(taken) <= length
    assert drafts, "nothing was ever drafted"


def test_drafts_outside_the_look_ahead_change_nothing() -> None:
    for step in run("llada", DcLeap(commit=0.5, draft=0.2), 4)[:3]:
        state, window, decoder = step.before, step.window, DcLeap(commit=0.5, draft=0.2)
        ahead = decoder.ahead(state, window)
        assert ahead.any() and not ahead.all()
        noise = torch.randint(0, 50, state.tokens.shape, generator=torch.Generator().manual_seed(0))
        bank = torch.full_like(state.tokens, 5)
        other = torch.where(ahead, bank, noise)
        views: list[Canvas] = [decoder.view(state, window, memory) for memory in (bank, other)]
        assert torch.equal(views[0].tokens, views[1].tokens)
        moves = [decoder.decide(state, window, step.prediction, memory)[0] for memory in (bank, other)]
        assert torch.equal(moves[0].commit, moves[1].commit) and torch.equal(moves[0].tokens, moves[1].tokens)


def test_a_draft_is_no_output_unless_it_is_predicted_again() -> None:
    """A model that draws back as soon as it is asked with a mask in the window."""

    def fickle(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 10, dtype=torch.float64)
        logits[:, 3:, 2] = 20.0  # far right of the first window, everybody says 2
        begun = (tokens[:, 1] != M)[:, None, None]
        logits = torch.where(begun & (tokens == M)[..., None], logits.flip(-1).roll(-1, dims=-1), logits)
        return logits  # where a mask is shown later on, 6

    predictor = FunctionPredictor(fickle)
    taken = steps(predictor, DcLeap(), length=6, schedule=Sliding(2))
    assert any(2 in canvas for canvas in shown(predictor)), "2 was drafted"
    assert 2 not in taken[-1].after.tokens[0].tolist()
    assert taken[-1].after.tokens[0, 3:].tolist() == [6, 6, 6, 6]


def test_the_contract_is_kept() -> None:
    contract.assert_decoder_contract(DcLeap(commit=0.4, draft=0.2))


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"commit": -0.1}, r"commit must be a probability, 0 to 1: got -0\.1"),
        ({"commit": 1.5}, r"commit must be a probability, 0 to 1: got 1\.5"),
        ({"draft": float("nan")}, "draft must be a probability, 0 to 1: got nan"),
    ],
)
def test_bounds_that_are_no_probabilities_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DcLeap(**options)


def test_it_runs_on_a_sliding_window_and_says_so() -> None:
    assert DECODERS.make("dc-leap(commit=0.65)") == DcLeap(0.65, 0.98)
    assert Recipe.of("dc-leap").schedule == Sliding(128)
    check_composition(DcLeap(), Sliding(3), CACHES.make("window"))
    for schedule in (Whole(), Sequential(4)):
        with pytest.raises(CompositionError, match=r"DcLeap cannot run on the schedule .*: it works on Sliding only"):
            check_composition(DcLeap(), schedule, CACHES.make("none"))


def test_it_runs_in_the_models_own_precision() -> None:
    """Probabilities are float32 unless told otherwise."""
    taken = steps(ScriptedPredictor([guesses(0.9, 0.9)]), DcLeap(), length=2, schedule=Sliding(2), sampling=Sampling())
    assert len(taken) == 1 and taken[0].prediction.confidence.dtype == torch.float32


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_run_of_one_slot_takes_a_forward_per_slot_and_drafts_may_still_change_the_text(family: str) -> None:
    """Nothing exceeds a `commit` of 1, but what the model is shown right of the window differs."""
    changed = 0
    for row, length in enumerate(contract.LENGTHS):
        drafting, plain = (run(family, DcLeap(1.0, draft), 3, row) for draft in (0.2, 1.0))
        assert len(drafting) == len(plain) == length
        assert [slots for slots, _ in decided(drafting)] == [slots for slots, _ in decided(plain)]
        changed += decided(drafting) != decided(plain)
    assert changed, "no draft changed a token"
