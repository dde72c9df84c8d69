"""What a record keeps of the canvas that the model was shown, worked out on paper."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import unmask
from fakes import ScriptedPredictor, steps
from unmask.core.canvas import Canvas, plain_view
from unmask.core.denoise import Step
from unmask.core.extras import attach, masks
from unmask.core.schedules import Pipelined, Sequential
from unmask.core.state import DenoisingState, Move
from unmask.core.trajectory import Recorder, Trajectory
from unmask.core.views import NO_BELIEF, Views
from unmask.core.window import Window
from unmask.decoders import Decoder
from unmask.decoders.threshold import Threshold
from unmask.errors import RequestError
from unmask.generation import Recipe, run, start_state

MASK = 9


@dataclass(frozen=True, slots=True)
class Drafty(Decoder):
    """Shows token 7 in the last slot of every row that is masked there, and commits what reaches 0.9."""

    def view(self, state: DenoisingState, window: Window, memory: Any) -> Canvas:
        last = state.slots == state.exists.sum(-1, keepdim=True) - 1
        return replace(plain_view(state), tokens=torch.where(last & state.masked, 7, state.tokens))

    def decide(self, state: DenoisingState, window: Window, prediction: Any, memory: Any) -> Move:
        return Threshold(0.9).decide(state, window, prediction, memory)


@dataclass(frozen=True, slots=True)
class Doubting(Decoder):
    """A shadow for every committed answer slot; takes back what its shadow gives less than 0.5."""

    revokes: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True

    def view(self, state: DenoisingState, window: Window, memory: Any) -> Canvas:
        held = state.answer & ~state.masked
        if not bool(held.any()):
            return plain_view(state)
        shadows = masks(state, held)
        return attach(state.tokens, shadows, torch.zeros(state.num_rows, shadows.count, shadows.count).bool())

    def decide(self, state: DenoisingState, window: Window, prediction: Any, memory: Any) -> Move:
        move = Threshold(0.9).decide(state, window, prediction, memory)
        if prediction.targets is None:
            return move
        belief = prediction.echo(prediction.confidence_in(state.tokens), 1.0)
        return replace(move, revoke=state.answer & ~state.masked & (belief < 0.5))


def seen(taken: list[Step], state: DenoisingState) -> Views:
    views = Trajectory.collect(state, iter(taken), views=True).views
    assert views is not None
    return views


def drafted() -> tuple[DenoisingState, list[Step]]:
    """Two ragged rows; the first has drafts at two steps, the second at one."""
    state = DenoisingState.start([[0], [0, 0]], [3, 1], mask_id=MASK)
    script = [
        [{1: (1, 0.95), 2: (2, 0.5), 3: (3, 0.6)}, {2: (2, 0.92), 3: (4, 0.7)}, {3: (5, 0.95)}],
        [{2: (6, 0.9)}],
    ]
    return state, steps(ScriptedPredictor(script, mask_id=MASK), Drafty(), state=state)


def test_a_draft_is_a_token_shown_at_a_masked_slot() -> None:
    state, taken = drafted()
    # passes: 0 and 1 are both rows at the first step, 2 and 3 the first row alone
    assert seen(taken, state).drafts.tolist() == [[0, 3, 7], [1, 2, 7], [2, 3, 7], [3, 3, 7]]


def test_every_asked_slot_has_its_candidate_and_confidence() -> None:
    state, taken = drafted()
    views = seen(taken, state)
    assert views.asked.tolist() == [
        [0, 1, 1], [0, 2, 2], [0, 3, 3], [1, 2, 6],
        [2, 2, 2], [2, 3, 4],
        [3, 3, 5],
    ]  # fmt: skip
    assert views.confidence.tolist() == pytest.approx([0.95, 0.5, 0.6, 0.9, 0.92, 0.7, 0.95], abs=1e-3)
    assert views.confidence.dtype == torch.half


def test_open_slots_are_runs() -> None:
    """Given text inside the answer cuts a window in two."""
    state = DenoisingState.from_canvas([[0, None, None, 5, None, None]], mask_id=MASK)
    script = [{1: (1, 0.95), 2: (1, 0.95), 4: (1, 0.95)}, {5: (1, 0.95)}]
    views = seen(steps(ScriptedPredictor(script), Threshold(0.9), state=state, schedule=Sequential(4)), state)
    assert views.open.tolist() == [[0, 1, 3], [0, 4, 5], [1, 5, 6]]


def test_slots_that_do_not_exist_yet_are_hidden() -> None:
    state = DenoisingState.start([[0]], 4, mask_id=MASK)
    script = [{1: (1, 0.95), 2: (1, 0.95)}, {3: (1, 0.95), 4: (1, 0.95)}]
    taken = steps(ScriptedPredictor(script), Threshold(0.9), state=state, schedule=Pipelined(2, add=1.0))
    assert seen(taken, state).hidden.tolist() == [[0, 3, 5]]


def test_an_extra_slot_keeps_its_place_its_question_and_its_belief() -> None:
    state = DenoisingState.start([[0]], 2, mask_id=MASK)
    # slot 3 is the first extra one: the shadow of slot 1, which would rather have 4 than 1
    script = [{1: (1, 0.95), 2: (2, 0.6)}, {2: (2, 0.95), 3: (4, 0.75)}, {1: (4, 0.95), 3: (2, 0.8)}]
    views = seen(steps(ScriptedPredictor(script), Doubting(), state=state), state)
    assert views.extras.tolist() == [[1, 3, MASK, 1, 1], [2, 3, MASK, 2, 2]]
    assert views.belief.tolist() == pytest.approx([0.25 / 8, 0.8], abs=1e-3)
    assert [1, 3, 4] in views.asked.tolist(), "what the shadow would rather have"


def test_a_shadow_of_a_masked_slot_believes_nothing() -> None:
    state = DenoisingState.start([[0]], 2, mask_id=MASK)

    @dataclass(frozen=True, slots=True)
    class Asking(Decoder):
        def view(self, state: DenoisingState, window: Window, memory: Any) -> Canvas:
            shadows = masks(state, state.masked)
            return attach(state.tokens, shadows, torch.zeros(state.num_rows, shadows.count, shadows.count).bool())

        def decide(self, state: DenoisingState, window: Window, prediction: Any, memory: Any) -> Move:
            return Threshold(0.9).decide(state, window, prediction, memory)

    views = seen(steps(ScriptedPredictor([{1: (1, 0.95), 2: (1, 0.95)}]), Asking(), state=state), state)
    assert views.extras[:, 4].tolist() == [1, 2] and views.belief.tolist() == [NO_BELIEF, NO_BELIEF]


def test_the_winning_branch_is_kept() -> None:
    state, taken = drafted()
    taken[0] = replace(taken[0], move=replace(taken[0].move, branch=torch.tensor([2, 0])))
    assert seen(taken, state).branches.tolist() == [[0, 2], [1, 0]]


def test_a_plain_method_has_no_drafts_extra_slots_or_branches(llada: unmask.Model) -> None:
    state = start_state(llada, ["sort it", "a longer prompt"], [20, 30])
    views = seen(list(run(llada, state, Recipe.of("threshold"))), state)
    assert not len(views.drafts) and not len(views.extras) and not len(views.branches) and not len(views.hidden)
    assert len(views.asked) and len(views.open)


def test_a_row_cut_out_keeps_its_own_views_and_numbers_its_passes_anew() -> None:
    state, taken = drafted()
    whole = Trajectory.collect(state, iter(taken), views=True)
    one, other = whole.of_row(0).views, whole.of_row(1).views
    assert one is not None and other is not None
    assert one.drafts.tolist() == [[0, 3, 7], [1, 3, 7], [2, 3, 7]]
    assert other.drafts.tolist() == [[0, 2, 7]]
    assert other.asked.tolist() == [[0, 2, 6]] and other.confidence.tolist() == pytest.approx([0.9], abs=1e-3)


def test_views_cost_nothing_where_nobody_asked_for_them(tmp_path: Path) -> None:
    state, taken = drafted()
    plain, viewed = (Trajectory.collect(state, iter(taken), views=views) for views in (False, True))
    assert plain.views is None
    plain.save(tmp_path / "plain")
    viewed.save(tmp_path / "viewed")
    assert not any(name.startswith("view.") for name in load_file(tmp_path / "plain"))


def assert_views_equal(one: Views | None, other: Views | None) -> None:
    assert one is not None and other is not None
    for field in fields(Views):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs), field.name


def test_views_come_back_from_a_file(tmp_path: Path) -> None:
    record = Trajectory.collect(*drafted(), views=True)
    record.save(tmp_path / "run")
    assert_views_equal(Trajectory.load(tmp_path / "run").views, record.views)
    record.of_row(1).save(tmp_path / "row")
    assert_views_equal(Trajectory.load(tmp_path / "row").views, record.of_row(1).views)


def test_a_run_without_steps_has_empty_views(tmp_path: Path) -> None:
    state = DenoisingState.start([[0]], 2, mask_id=MASK)
    empty = Recorder(state, views=True).trajectory()
    assert_views_equal(empty.views, Views.none())
    empty.save(tmp_path / "empty")
    assert_views_equal(Trajectory.load(tmp_path / "empty").views, Views.none())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("view.drafts", lambda table: table + 1000),
        ("view.asked", lambda table: functional.pad(table, (0, 1))),
        ("view.confidence", lambda values: values[1:]),
        ("view.open", lambda table: -table.int()),
    ],
)
def test_views_that_do_not_fit_the_run_are_refused(tmp_path: Path, name: str, change: Any) -> None:
    Trajectory.collect(*drafted(), views=True).save(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole")
    tensors[name] = change(tensors[name].short() if name != "view.confidence" else tensors[name]).contiguous()
    notes = {"format": "unmask-trajectory-2", "facts": "{}", "model": '{"mask_id": 9, "end_ids": [], "shift": 0}'}
    save_file(tensors, tmp_path / "broken", metadata=notes)
    with pytest.raises(RequestError, match='broken" is not a trajectory: '):
        Trajectory.load(tmp_path / "broken")
