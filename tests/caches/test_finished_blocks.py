"""The exact cache of block diffusion: when a block is frozen, what it saves, and that a step earlier would be wrong."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
import fakes
from fakes import ScriptedPredictor
from unmask.caches import CACHES, CachePolicy, KVStore
from unmask.caches.finished_blocks import FinishedBlocks
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import Step
from unmask.core.schedules import Pipelined, Schedule, Sequential, Sliding, Whole
from unmask.core.state import DenoisingState, Move
from unmask.decoders import DECODERS
from unmask.decoders.threshold import Threshold

# Which slots are frozen ----------------------------------------------------------------------------------------------


def frozen(state: DenoisingState, schedule: Schedule, row: int = 0) -> list[int]:
    flags = FinishedBlocks().frozen(state, schedule.window(state, None), None)
    assert flags is not None
    return flags[row].nonzero()[:, 0].tolist()


def step(state: DenoisingState, *commits: int, revoke: tuple[int, ...] = (), row: int = 0) -> DenoisingState:
    """One step of one row; the other rows idle."""
    commit, taken = torch.zeros_like(state.masked), torch.zeros_like(state.masked)
    commit[row, list(commits)], taken[row, list(revoke)] = True, True
    return state.apply(Move(commit, torch.full_like(state.tokens, 5), taken))


def fresh(*rows: list[int | None]) -> DenoisingState:
    return DenoisingState.from_canvas(rows, mask_id=9)


def test_the_prompt_is_frozen_from_the_second_pass_on() -> None:
    state = fresh([1, 1, None, None, None], [1, None, None, None])
    assert frozen(state, Sequential(2)) == frozen(state, Sequential(2), 1) == []
    state = step(state, 2)
    assert (frozen(state, Sequential(2)), frozen(state, Sequential(2), 1)) == ([0, 1], [0])


@pytest.mark.parametrize("schedule", [Sequential(2), Pipelined(2, add=0.5)])
def test_a_block_is_frozen_one_pass_after_the_one_that_ran_it_with_its_final_tokens(schedule: Schedule) -> None:
    state = step(step(fresh([1, *[None] * 6]), 2), 1)  # two passes: the block is complete, its masks were all that ran
    assert frozen(state, schedule) == [0]
    state = step(state, 3)  # the third pass has run it complete
    assert frozen(state, schedule) == [0, 1, 2]


def test_a_complete_block_behind_an_incomplete_one_is_computed_until_that_one_is_complete() -> None:
    schedule, state = Pipelined(2, add=0.5), fresh([1, *[None] * 6])
    state = step(step(state, 2), 3, 4)
    state = step(state, 6)
    assert frozen(state, schedule) == [0]
    state = step(state, 1)
    assert frozen(state, schedule) == [0]  # blocks 0 and 1 become final together ...
    assert frozen(step(state, 5), schedule) == [0, 1, 2, 3, 4]  # ... and are stored by the same pass


def test_given_text_in_an_unfinished_block_is_computed() -> None:
    """It sees the masks of its block. Blocks [1 2] [3 4] [5 6]; 2, 3 and 5 are given."""
    state = fresh([1, None, 1, 1, None, 1, None])
    state = step(state, 1)
    assert frozen(state, Sequential(2)) == [0]
    state = step(step(state), 4)
    assert frozen(state, Sequential(2)) == [0, 1, 2]


def test_the_end_of_a_prompt_that_shares_its_block_with_the_answer_is_computed() -> None:
    """Absolute blocks [0 1] [2 3] [4 5]; the answer begins at slot 3."""
    schedule, state = Sequential(2, align="absolute"), step(fresh([1, 1, 1, None, None]))
    assert frozen(state, schedule) == [0, 1]
    assert frozen(step(step(state, 3), 4), schedule) == [0, 1, 2, 3]


def test_a_revocation_thaws_its_block_and_all_behind_it() -> None:
    schedule, state = Sequential(2), fresh([1, *[None] * 6])
    state = step(step(step(state, 1, 2), 3, 4), 5)
    assert frozen(state, schedule) == [0, 1, 2, 3, 4]
    state = step(state, revoke=(2,))
    assert frozen(state, schedule) == [0]
    state = step(state, 2)
    assert frozen(state, schedule) == [0]
    assert frozen(step(state, 6), schedule) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("schedule", [Whole(), Sliding(4)])
def test_without_blocks_nothing_is_frozen(schedule: Schedule) -> None:
    state = step(step(fresh([1, *[None] * 6]), 1, 2))
    assert FinishedBlocks().frozen(state, schedule.window(state, None), None) is None


# What it costs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept(fakes.CallCounter):
    """A store that knows what was computed, as the real one does."""

    inner: KVStore

    def known(self, shown: Tensor) -> Any:
        return self.inner.known(shown)

    def note(self, canvas: Canvas, work: ForwardPlan) -> None:
        super().note(canvas, work)
        self.inner.note(canvas, work)


class KeepingPredictor(ScriptedPredictor):
    def open_store(self, state: DenoisingState, cache: Any) -> Kept:
        rows = torch.arange(state.num_rows)
        return Kept(rows, torch.zeros_like(rows), cache.open_store(state))


SURE, LOW = 0.95, 0.3
TRACE = [  # prompt of 3; blocks [3 4 5 6] and [7 8 9 10]
    {3: (1, SURE), 4: (1, LOW), 5: (1, SURE), 6: (1, LOW)},
    {4: (1, SURE), 6: (1, LOW), **{slot: (2, LOW) for slot in (7, 8, 9, 10)}},
    {6: (1, LOW), 7: (2, LOW), 8: (2, 0.4), 9: (2, LOW), 10: (2, LOW)},
    {7: (2, SURE), 9: (2, LOW), 10: (2, LOW)},
    {9: (2, LOW), 10: (2, SURE)},
    {9: (2, LOW)},
]


def test_the_published_example_of_two_blocks_step_by_step() -> None:
    """The first block reaches half, three quarters, all; the second joins, has to commit, and is alone in the end."""
    predictor = KeepingPredictor(TRACE, shift=0)
    schedule = Pipelined(4, add=0.5, force=0.75)
    options: dict[str, Any] = {"prompt": [0, 0, 0], "length": 8, "schedule": schedule, "cache": "finished-blocks"}
    steps = fakes.steps(predictor, Threshold(0.9), **options)
    commits = [one.move.commit[0].nonzero()[:, 0].tolist() for one in steps]
    assert commits == [[3, 5], [4], [6, 8], [7], [10], [9]]
    assert [int(one.rows_computed) for one in steps] == [3 + 4, 8, 8, 8, 4, 4]
    assert [int(one.window.visible.sum()) for one in steps] == [7, 11, 11, 11, 11, 11]
    plain = fakes.steps(KeepingPredictor(TRACE), Threshold(0.9), **{**options, "cache": "none"})
    assert [int(one.rows_computed) for one in plain] == [7, 11, 11, 11, 11, 11]


def test_a_shifted_model_runs_the_row_left_of_the_first_open_slot_once_more() -> None:
    """Only while that slot is masked; in the first pass and in the one that stores a block the row runs anyway."""
    predictor = KeepingPredictor(TRACE, shift=1)
    options: dict[str, Any] = {"prompt": [0, 0, 0], "length": 8, "schedule": Pipelined(4, add=0.5, force=0.75)}
    steps = fakes.steps(predictor, Threshold(0.9), cache="finished-blocks", **options)
    assert [int(one.rows_computed) for one in steps] == [3 + 4, 8, 8, 8, 4, 4]  # slots 3 and 7 were committed in time
    late = [{4: (1, SURE)}, {3: (1, LOW)}, {5: (1, SURE), 6: (1, SURE)}, {7: (1, LOW)}]
    steps = fakes.steps(KeepingPredictor(late, shift=1), Threshold(0.9), cache="finished-blocks", **options)
    commits = [one.move.commit[0].nonzero()[:, 0].tolist() for one in steps]
    assert commits[:2] == [[4], [3]]
    assert [int(one.rows_computed) for one in steps][:3] == [3 + 4, 1 + 4, 8]


# Where it is exact ---------------------------------------------------------------------------------------------------

SCHEDULE = Pipelined(4, add=0.5, force=0.75)


class TooEarly(FinishedBlocks):
    """Freezes a block as soon as it is complete, before any pass has run it with its final tokens."""

    def frozen(self, state: DenoisingState, window: Any, memory: Any) -> Any:
        older = replace(state, step=state.step + 1)
        return super().frozen(older, window, memory)


def runs(family: str, policy: CachePolicy) -> Iterator[Step]:
    decoder = DECODERS.make("threshold(threshold=0.6)")
    return contract.steps(
        family, contract.first_state(family, infill=True), decoder, SCHEDULE, policy, attention="block_causal"
    )


def differences(family: str, policy: CachePolicy) -> list[float]:
    """Largest difference between logits with the policy and without a cache, per step while they say the same."""
    worst = []
    for plain, cached in zip(runs(family, CACHES.make("none")), runs(family, policy), strict=False):
        finite = plain.prediction.logits.isfinite()
        worst.append(float((plain.prediction.logits - cached.prediction.logits)[finite].abs().max()))
        if not torch.equal(plain.after.tokens, cached.after.tokens):
            break
    return worst


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_logits_are_those_without_a_cache_at_every_step(family: str) -> None:
    found = differences(family, FinishedBlocks())
    assert max(found) < 1e-11
    assert len(found) == len(list(runs(family, CACHES.make("none"))))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_frozen_a_step_earlier_they_are_not(family: str) -> None:
    assert max(differences(family, TooEarly())) > 1e-3


def test_a_run_taken_up_in_the_middle_goes_on_as_before() -> None:
    """With an empty store its first pass runs everything that is there, whatever the step."""
    steps = list(runs("llada", FinishedBlocks()))
    middle = next(one for one in steps if int(one.before.step[0]) == 3)
    assert len(middle.row_ids) > 1
    decoder = DECODERS.make("threshold(threshold=0.6)")
    again = list(contract.steps("llada", middle.before, decoder, SCHEDULE, FinishedBlocks(), attention="block_causal"))
    assert torch.equal(again[0].rows_computed, middle.window.visible.sum(-1))
    rest = [one for one in steps if int(one.before.step[0]) > 3]
    for one, other in zip(again[1:], rest, strict=True):
        assert torch.equal(one.after.tokens, other.after.tokens)
        assert torch.equal(one.rows_computed, other.rows_computed)
