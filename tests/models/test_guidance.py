"""Two passes, one that sees what was given and one that does not."""

import pytest
import torch
from torch import Tensor

import contract
from fakes import FunctionPredictor
from unmask.caches import CACHES
from unmask.core import rows
from unmask.core.canvas import Canvas, ForwardPlan, plain_view, plan
from unmask.core.schedules import Whole
from unmask.core.state import DenoisingState
from unmask.errors import RequestError
from unmask.models.guidance import Guided, GuidedStore

MASK = 9
NONE = CACHES.make("none")


def counts(tokens: Tensor) -> Tensor:
    """Logits that tell how many slots of a row are masked: 0.1 of it for token 1, 0.3 for token 2."""
    masked = (tokens == MASK).sum(-1, keepdim=True).double()
    logits = torch.zeros(*tokens.shape, 10, dtype=torch.float64)
    logits[..., 1], logits[..., 2] = 0.1 * masked, 0.3 * masked
    return logits


def work_of(state: DenoisingState) -> tuple[Canvas, ForwardPlan]:
    canvas = plain_view(state)
    return canvas, plan(canvas, Whole().window(state, None), state.masked, None, 0)


def infilling() -> DenoisingState:
    """A prompt of two slots, a hole, given text, a hole: two masked slots, five when what was given is hidden."""
    return DenoisingState.from_canvas([[4, 5, None, 6, None]], mask_id=MASK)


def test_logits_are_pushed_away_from_those_without_the_given_tokens() -> None:
    guided = Guided(FunctionPredictor(counts), 1.5)
    state = infilling()
    logits = guided(*work_of(state), NONE, guided.open_store(state, NONE))
    for token, weight in ((1, 0.1), (2, 0.3)):
        conditional, without = 2 * weight, 5 * weight
        assert logits[0, :, token].tolist() == pytest.approx([without + 2.5 * (conditional - without)] * 2)


def test_scale_0_is_the_pass_with_the_prompt() -> None:
    model = contract.model("llada")
    state = contract.first_state("llada", infill=True)
    guided = Guided(model.predictor, 0.0)
    logits = guided(*work_of(state), NONE, guided.open_store(state, NONE))
    plain = model.predictor(*work_of(state), NONE, model.predictor.open_store(state, NONE))
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-12)


def test_two_equal_passes_are_one_pass_at_any_scale() -> None:
    guided = Guided(FunctionPredictor(lambda tokens: counts(torch.full_like(tokens, MASK))), 7.0)
    state = infilling()
    logits = guided(*work_of(state), NONE, guided.open_store(state, NONE))
    torch.testing.assert_close(logits[0, 0, :3], torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64))


def test_ruled_out_tokens_stay_ruled_out() -> None:
    guided = Guided(FunctionPredictor(counts, banned_ids=(MASK, 3)), 2.0)
    state = infilling()
    logits = guided(*work_of(state), NONE, guided.open_store(state, NONE))
    assert logits[0].isneginf().nonzero()[:, 1].tolist() == [3, MASK] * 2
    assert not logits.isnan().any()


def test_guidance_may_wrap_guidance_and_doubles_the_passes() -> None:
    inner = FunctionPredictor(counts)
    assert Guided(inner, 1.0).passes == 2
    assert Guided(Guided(inner, 1.0), 1.0).passes == 4
    assert Guided(inner, 1.0).facts is inner.facts


@pytest.mark.parametrize("scale", [-0.5, float("nan"), float("inf")])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(RequestError, match=f"guidance must be a number from 0 up: got {scale}"):
        Guided(FunctionPredictor(counts), scale)


# The store -----------------------------------------------------------------------------------------------------------


def open_store(state: DenoisingState, cache: str = "dual") -> GuidedStore:
    return Guided(contract.model("llada").predictor, 1.0).open_store(state, CACHES.make(cache))


def test_the_blind_canvas_hides_what_was_given_and_nothing_else() -> None:
    state = infilling()
    state = state.fill(torch.tensor([[False, False, True, False, False]]), torch.tensor([7]))
    canvas = Canvas(torch.nn.functional.pad(state.tokens, (0, 1), value=5), torch.arange(6)[None], extra=1)
    guided = Guided(FunctionPredictor(counts), 1.0)
    blind = guided.open_store(state, NONE).blind(canvas)
    assert blind.tokens.tolist() == [[MASK, MASK, 7, MASK, MASK, 5]]
    assert (blind.extra, blind.positions.tolist()) == (1, canvas.positions.tolist())


def test_each_pass_remembers_the_tokens_it_was_shown() -> None:
    state = contract.first_state("llada", (0,))
    store = open_store(state)
    guided = Guided(contract.model("llada").predictor, 1.0)
    canvas, work = work_of(state)
    assert not store.known(state.tokens).any()
    guided(canvas, work, CACHES.make("dual"), store)
    store.note(canvas, work)
    assert store.known(state.tokens).all()
    assert torch.equal(store.conditional.computed_for, state.tokens)
    assert (store.unconditional.computed_for == state.mask_id).all()
    assert not torch.equal(store.conditional.keys[0], store.unconditional.keys[0])


def test_rows_of_a_guided_store_leave_and_join() -> None:
    state = contract.first_state("llada")
    store = open_store(state)
    left = rows.take(store, torch.tensor([2, 0]))
    assert torch.equal(left.hidden, state.given[[2, 0]])
    again = rows.join(left, rows.take(store, torch.tensor([1])))
    assert torch.equal(again.hidden, state.given[[2, 0, 1]])
    assert again.conditional.computed_for.shape == again.unconditional.computed_for.shape == state.tokens.shape


def test_guided_stores_of_different_widths_join_like_plain_ones() -> None:
    narrow, wide = (DenoisingState.start([[3, 4]], length, mask_id=56) for length in (3, 7))
    joined = rows.join(open_store(narrow), open_store(wide))
    assert torch.equal(joined.hidden, narrow.join(wide).given)
