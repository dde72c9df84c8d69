"""When an answer is closed early, what is settled, and which end tokens have to wait."""

from typing import Any

import pytest
import torch

from fakes import ScriptedPredictor, steps
from unmask.core.schedules import Sequential
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping, first_end, is_any, settled
from unmask.core.window import Window
from unmask.decoders.threshold import Threshold
from unmask.errors import RequestError

MASK, END, TURN = 9, 8, 7
ENDS = (END, TURN)


def standing(*rows: str) -> DenoisingState:
    """States from pictures: p prompt, _ masked, e and t the end tokens, x another committed token, g given infill text,
    P an end token in the prompt."""
    tokens = {"p": 1, "P": END, "g": 2, "_": None, "x": None, "e": None, "t": None}
    state = DenoisingState.from_canvas([[tokens[mark] for mark in row] for row in rows], mask_id=MASK)
    commit, values = torch.zeros_like(state.masked), state.tokens.clone()
    for row, picture in enumerate(rows):
        for slot, mark in enumerate(picture):
            if mark in "xet":
                commit[row, slot], values[row, slot] = True, {"x": 3, "e": END, "t": TURN}[mark]
    return state.apply(Move(commit, values))


def opened(state: DenoisingState, first: int, last: int) -> Window:
    """A window over the answer slots first..last, as it was before the move."""
    inside = state.answer & (state.slots >= first) & (state.slots <= last)
    return Window(inside, state.exists, inside, torch.zeros(state.num_rows, dtype=torch.long))


def closed(picture: str, mode: Any, window: tuple[int, int] = (1, 9), revokes: bool = False) -> list[int]:
    state = standing(picture)
    return Stopping(mode).tail(state, opened(state, *window), ENDS, revokes)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        ("pxe__", [3, 4]),
        ("pxt__", [3, 4]),  # any of the end tokens
        ("pe___", [2, 3, 4]),
        ("pxex_", [4]),  # what was committed behind the end stays; it is cut off with the tail
        ("p_e__", []),  # something left of the end is undecided
        ("px_e_", []),
        ("pxx__", []),
        ("Px___", []),  # an end token in the prompt ends nothing
        ("pxxe", []),  # nothing is left to close
    ],
)
def test_tail_closes_behind_an_end_token_whose_left_side_is_decided(picture: str, expected: list[int]) -> None:
    assert closed(picture, "tail") == expected


@pytest.mark.parametrize("picture", ["pxeg__", "pxe_g", "pgxe_", "p_gxe"])
def test_a_canvas_with_given_text_behind_its_first_hole_is_never_closed_early(picture: str) -> None:
    if picture == "pgxe_":  # the text stands before the first hole: part of the prompt
        assert closed(picture, "tail") == [4]
    else:
        assert closed(picture, "tail") == closed(picture, "block") == []


@pytest.mark.parametrize(
    ("picture", "window", "expected"),
    [
        ("pxe___", (1, 3), []),  # slot 3 of the window is masked
        ("pxex__", (1, 3), [4, 5]),
        ("pxxe__", (1, 3), [4, 5]),
        ("pxex_x", (1, 3), [4]),
        ("p_exx_", (4, 5), []),
    ],
)
def test_block_waits_until_the_window_is_full(picture: str, window: tuple[int, int], expected: list[int]) -> None:
    assert closed(picture, "block", window) == expected


@pytest.mark.parametrize(("picture", "expected"), [("pxe___", []), ("pxex__", [4, 5])])
def test_a_method_that_may_revoke_waits_until_the_window_is_full(picture: str, expected: list[int]) -> None:
    assert closed(picture, "tail", (1, 3), revokes=True) == expected


def test_none_decides_every_slot() -> None:
    assert closed("pxe__", "none") == []


def test_a_model_without_end_tokens_is_never_stopped() -> None:
    state = standing("pxe__")
    assert not Stopping("tail").tail(state, opened(state, 1, 4), (), False).any()


def test_rows_are_closed_one_by_one() -> None:
    state = standing("pxe__", "pp_e_", "pxx_t")
    assert Stopping().tail(state, opened(state, 1, 4), ENDS, False).tolist() == [
        [False, False, False, True, True],
        [False] * 5,
        [False] * 5,
    ]


def test_an_unknown_mode_is_refused() -> None:
    """Set behind the back of the tests' type checker, which would refuse it first."""
    rule = Stopping()
    object.__setattr__(rule, "mode", "soon")
    with pytest.raises(RequestError, match='stop must be "tail", "block" or "none": got "soon"'):
        rule.__post_init__()


def test_tail_is_the_default_and_end_tokens_are_not_held() -> None:
    assert Stopping() == Stopping("tail", hold_end=False)


# The settled part ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "expected"),
    [("pxxe_", 3), ("pxte_", 2), ("p_e__", 5), ("pxxxx", 5), ("Pxxx_", 5), ("Pexe_", 1)],
)
def test_the_first_end_is_the_slot_or_the_canvas_length(picture: str, expected: int) -> None:
    assert first_end(standing(picture), ENDS).tolist() == [expected]


@pytest.mark.parametrize(
    ("picture", "window", "revokes", "expected"),
    [
        ("pxx_x_", (1, 3), False, [1, 2]),
        ("p_xxxx", (1, 3), False, []),
        ("ppxxxx", (2, 5), False, [2, 3, 4, 5]),  # the prompt is not part of it
        ("pxx_x_", (1, 3), True, []),  # slots of an unfinished window may come back
        ("pxxx__", (1, 3), True, [1, 2, 3]),  # the window is full
        ("pxxxx_", (4, 5), True, [1, 2, 3]),  # earlier windows are closed
    ],
)
def test_the_settled_run_is_what_can_never_change_again(
    picture: str, window: tuple[int, int], revokes: bool, expected: list[int]
) -> None:
    state = standing(picture)
    assert settled(state, opened(state, *window), revokes)[0].nonzero()[:, 0].tolist() == expected


def test_is_any_finds_every_id() -> None:
    tokens = torch.tensor([[1, 2, 3, 2]])
    assert is_any(tokens, (2, 3)).tolist() == [[False, True, True, True]]
    assert not is_any(tokens, ()).any()


# Holding end tokens back ---------------------------------------------------------------------------------------------


def held(picture: str, candidates: dict[int, int]) -> list[int]:
    state = standing(picture)
    script = {slot: (token, 0.9) for slot, token in candidates.items()}
    predictor = ScriptedPredictor([script], mask_id=MASK, end_ids=ENDS)
    first = steps(predictor, Threshold(0.5), state=state)[0]
    return Stopping(hold_end=True).held(state, first.window, first.prediction, ENDS)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("picture", "candidates", "expected"),
    [
        ("p____", {1: END, 2: 3, 3: END, 4: 3}, [3]),  # the leftmost masked slot may end the answer
        ("p____", {1: 3, 2: TURN, 3: END, 4: 3}, [2, 3]),
        ("px__x", {2: END, 3: END}, [3]),
        ("pxx_x", {3: END}, []),
        ("p_x_x", {1: 3, 3: END}, [3]),
    ],
)
def test_an_end_token_is_held_while_something_to_its_left_is_masked(
    picture: str, candidates: dict[int, int], expected: list[int]
) -> None:
    assert held(picture, candidates) == expected


def test_a_revoking_method_is_closed_by_the_loop_when_its_window_is_full() -> None:
    class Careful(Threshold):
        revokes = True

    predictor = ScriptedPredictor([{1: (END, 0.9)}, {2: (3, 0.9)}], mask_id=MASK, end_ids=ENDS)
    options: dict[str, Any] = {"length": 6, "schedule": Sequential(2), "stop": Stopping("tail")}
    sure, careful = steps(predictor, Threshold(0.9), **options), steps(predictor, Careful(0.9), **options)
    assert (len(sure), len(careful)) == (1, 2)
    assert careful[0].filled.sum() == 0 and careful[1].filled.sum() == 4
