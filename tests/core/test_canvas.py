"""Which rows are computed, by brute force: what was asked, what speaks about it, and what no cache stands in for."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.core.canvas import Canvas, pack, plain_view, plan
from unmask.core.state import DenoisingState
from unmask.core.window import Window


@st.composite
def flags(draw: st.DrawFn, rows: int, slots: int) -> Tensor:
    bits = st.lists(st.booleans(), min_size=slots, max_size=slots)
    return torch.tensor(draw(st.lists(bits, min_size=rows, max_size=rows)))


def indices(row: Tensor) -> list[int]:
    return row.nonzero()[:, 0].tolist()


def canvas_and_window(visible: Tensor, extra: int = 0) -> tuple[Canvas, Window]:
    tokens = torch.zeros(visible.shape[0], visible.shape[1] + extra, dtype=torch.long)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    nothing = torch.zeros_like(visible)
    return Canvas(tokens, positions, extra=extra), Window(nothing, visible, nothing, torch.zeros(len(tokens)).long())


def test_the_plain_view_shows_the_tokens_at_their_own_positions() -> None:
    state = DenoisingState.from_canvas([[3, None, 4], [5, None]], mask_id=9)
    canvas = plain_view(state)
    assert canvas.tokens.tolist() == [[3, 9, 4], [5, 9, 9]]
    assert canvas.positions.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert canvas.attends is None and canvas.num_answer_slots == 3


def test_extra_slots_are_not_answer_slots() -> None:
    canvas, _ = canvas_and_window(torch.ones(1, 4, dtype=torch.bool), extra=3)
    assert canvas.num_answer_slots == 4


@given(st.tuples(st.integers(1, 4), st.integers(1, 8)).flatmap(lambda size: flags(*size)))
@settings(max_examples=60, deadline=None)
def test_pack_lists_the_true_slots_and_pads_with_the_first(marked: Tensor) -> None:
    packed, count = pack(marked)
    assert packed.shape[1] == max(1, int(marked.sum(-1).max()))
    for row in range(len(marked)):
        wanted = indices(marked[row])
        padding = [wanted[0] if wanted else 0] * (packed.shape[1] - len(wanted))
        assert packed[row].tolist() == wanted + padding
        assert int(count[row]) == len(wanted)


@given(st.data(), st.integers(1, 3), st.integers(1, 7), st.integers(0, 3), st.integers(0, 1))
@settings(max_examples=120, deadline=None)
def test_a_plan_computes_what_was_asked_what_speaks_and_what_is_not_frozen(
    data: st.DataObject, rows: int, slots: int, extra: int, shift: int
) -> None:
    visible = data.draw(flags(rows, slots))
    shown = torch.nn.functional.pad(visible, (0, extra), value=True)
    asks = data.draw(flags(rows, slots + extra)) & shown
    frozen = data.draw(flags(rows, slots + extra))
    canvas, window = canvas_and_window(visible, extra)
    work = plan(canvas, window, asks, frozen, shift)
    assert not work.everything and torch.equal(work.visible, shown)
    for row in range(rows):
        asked = indices(asks[row])
        speakers = [max(slot - shift, 0) if slot < slots else slot for slot in asked]
        fresh = set(indices(shown[row] & ~frozen[row])) | set(asked) | set(speakers)
        assert work.rows[row, : int(work.num_rows[row])].tolist() == sorted(fresh)
        padding = set(work.rows[row, int(work.num_rows[row]) :].tolist())
        assert padding <= {min(fresh, default=0)}, "padding repeats a row that is computed anyway"
        assert work.asked[row, : int(work.num_asked[row])].tolist() == asked
        said = work.rows[row].gather(0, work.speakers[row])[: len(asked)].tolist()
        assert said == speakers, "every asked slot has its speaker among the rows"


@given(st.data(), st.integers(1, 3), st.integers(1, 7), st.integers(0, 2), st.integers(0, 1))
@settings(max_examples=40, deadline=None)
def test_without_frozen_slots_every_visible_slot_is_computed_in_order(
    data: st.DataObject, rows: int, slots: int, extra: int, shift: int
) -> None:
    visible = data.draw(flags(rows, slots))
    shown = torch.nn.functional.pad(visible, (0, extra), value=True)
    asks = data.draw(flags(rows, slots + extra)) & shown
    work = plan(*canvas_and_window(visible, extra), asks, None, shift)
    assert work.everything == (int(shown.sum(-1).max()) == slots + extra), "what no row can see is not computed"
    if work.everything:
        assert work.rows.tolist() == [list(range(slots + extra))] * rows
    speaking = [{max(s - shift, 0) if s < slots else s for s in indices(asks[row])} for row in range(rows)]
    work_of = [len(set(indices(shown[row])) | (set() if work.everything else speaking[row])) for row in range(rows)]
    assert work.num_rows.tolist() == work_of, "padding of the batch is no work of the row"
    for row in range(rows):
        asked = indices(asks[row])
        assert work.asked[row, : len(asked)].tolist() == asked
        said = work.rows[row].gather(0, work.speakers[row])[: len(asked)].tolist()
        assert said == [max(slot - shift, 0) if slot < slots else slot for slot in asked]


def test_a_frozen_slot_that_is_asked_about_is_computed_all_the_same() -> None:
    visible = torch.ones(1, 5, dtype=torch.bool)
    asks = torch.tensor([[False, False, False, True, False]])
    canvas, window = canvas_and_window(visible)
    assert plan(canvas, window, asks, torch.ones_like(visible), 0).rows.tolist() == [[3]]
    assert plan(canvas, window, asks, torch.ones_like(visible), 1).rows.tolist() == [[2, 3]]


def test_slot_0_speaks_for_itself_under_the_shift() -> None:
    visible = torch.ones(1, 3, dtype=torch.bool)
    canvas, window = canvas_and_window(visible)
    work = plan(canvas, window, torch.tensor([[True, True, False]]), torch.ones_like(visible), 1)
    assert work.rows.tolist() == [[0, 1]] and work.speakers.tolist() == [[0, 0]]
