"""The predictor against whole passes of the backbone: which row speaks, who is seen, what is ruled out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.caches import CACHES
from unmask.core.canvas import Canvas, plain_view, plan
from unmask.core.schedules import Whole
from unmask.core.state import DenoisingState
from unmask.models.attention import block_causal
from unmask.models.predictor import BackbonePredictor
from unmask.models.tiny import tiny_backbone, tiny_facts

BACKBONE = tiny_backbone(num_key_heads=1).double()
MASK = 23


def predictor(**facts: Any) -> BackbonePredictor:
    return BackbonePredictor(BACKBONE, tiny_facts(BACKBONE, **facts))


def ask(
    model: BackbonePredictor, state: DenoisingState, asks: Tensor | None = None, canvas: Canvas | None = None
) -> Tensor:
    """Logits of one pass that computes everything, about the masked slots unless told otherwise."""
    none, canvas = CACHES.make("none"), canvas or plain_view(state)
    work = plan(canvas, Whole().window(state, None), state.masked if asks is None else asks, None, model.facts.shift)
    with torch.no_grad():
        return model(canvas, work, none, model.open_store(state, none))


def whole(tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return BACKBONE(tokens, positions, mask)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def standing(*rows: list[int | None]) -> DenoisingState:
    return DenoisingState.from_canvas(rows, mask_id=MASK)


LINE: list[int | None] = [5, 2, None, 7, None, None]


def test_a_row_speaks_for_its_own_slot() -> None:
    state = standing(LINE)
    assert_close(ask(predictor(banned_ids=()), state)[0], whole(state.tokens)[0, [2, 4, 5]])


def test_under_the_shift_the_left_neighbour_speaks_and_slot_0_for_itself() -> None:
    state = standing(LINE)
    asks = torch.tensor([[True, False, True, False, True, True]])
    assert_close(ask(predictor(banned_ids=(), shift=1), state, asks)[0], whole(state.tokens)[0, [0, 1, 3, 4]])


def test_banned_tokens_get_no_logit_and_the_others_theirs() -> None:
    state = standing(LINE)
    banned, free = ask(predictor(banned_ids=(MASK, 4)), state), ask(predictor(banned_ids=()), state)
    assert banned[..., [MASK, 4]].isneginf().all()
    others = [token for token in range(24) if token not in (MASK, 4)]
    assert_close(banned[..., others], free[..., others])


def test_padding_is_not_seen() -> None:
    state = standing([5, None], LINE)
    logits = ask(predictor(banned_ids=()), state)
    assert_close(logits[0, :1], whole(standing([5, None]).tokens)[0, 1:])
    assert_close(logits[1], whole(standing(LINE).tokens)[0, [2, 4, 5]])


def test_a_canvas_may_say_who_sees_whom() -> None:
    state = standing(LINE)
    attends = torch.ones(6, 6, dtype=torch.bool).tril()[None]
    canvas = replace(plain_view(state), attends=attends)
    logits = ask(predictor(banned_ids=()), state, canvas=canvas)
    assert_close(logits[0], whole(state.tokens, mask=attends)[0, [2, 4, 5]])


def test_slots_have_the_positions_of_the_canvas() -> None:
    state = standing(LINE)
    positions = torch.tensor([[0, 1, 2, 2, 9, 4]])
    logits = ask(predictor(banned_ids=()), state, canvas=replace(plain_view(state), positions=positions))
    assert_close(logits[0], whole(state.tokens, positions)[0, [2, 4, 5]])


@pytest.mark.parametrize(
    ("alignment", "blocks"),
    [
        ("prompt", [[0, 0, 1, 1, 2, 2, 3], [0, 0, 0, 0, 1, 1, 2]]),  # behind each prompt, which is one block
        ("absolute", [[0, 0, 1, 1, 2, 2, 3], [0, 0, 1, 1, 2, 2, 3]]),
    ],
)
def test_block_causal_rows_see_their_own_and_earlier_blocks(alignment: str, blocks: list[list[int]]) -> None:
    state = standing([5, 2, None, 7, None, None, None], [5, 2, 8, 9, None, 3, None])
    model = predictor(banned_ids=(), attention="block_causal", block_length=2, block_alignment=alignment)
    index = torch.tensor(blocks)
    wanted = whole(state.tokens, mask=block_causal(index, index))
    logits = ask(model, state)
    assert_close(logits[0], wanted[0, [2, 4, 5, 6]])
    assert_close(logits[1, :2], wanted[1, [4, 6]])


def test_an_extra_slot_stands_in_the_block_of_its_position() -> None:
    """A shadow of slot 4, in the block of slots 4 and 5, sees nothing of the block behind it."""
    state = standing([5, 2, None, 7, None, None, None])
    tokens = torch.cat((state.tokens, torch.tensor([[MASK]])), dim=1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 4]])
    asks = torch.zeros(1, 8, dtype=torch.bool)
    asks[0, 7] = True
    attends = torch.ones(1, 8, 8, dtype=torch.bool)
    attends[0, :7, 7] = attends[0, 7, 4] = False
    model = predictor(banned_ids=(), attention="block_causal", block_length=2)
    logits = ask(model, state, asks, Canvas(tokens, positions, attends, extra=1))
    blocks = torch.tensor([[0, 0, 1, 1, 2, 2, 3]])
    plain = whole(state.tokens, mask=block_causal(blocks, blocks))
    assert_close(logits[0, 0], plain[0, 4])  # a mask in the place of a mask, seeing the same keys


def test_every_pass_counts_once_and_runs_where_the_weights_are() -> None:
    model = predictor()
    assert model.passes == 1 and model.device == torch.device("cpu")


@pytest.mark.parametrize(("cache", "keeps"), [("none", False), ("prefix", True), ("dual", True)])
def test_a_store_is_as_large_as_the_canvas_and_keeps_what_its_cache_needs(cache: str, keeps: bool) -> None:
    state = standing([5, None], LINE)
    store = predictor().open_store(state, CACHES.make(cache))
    assert store.computed_for.shape == state.tokens.shape and store.keeps == keeps
    assert torch.equal(store.prompt_length, state.prompt_length)
