"""Editing worked out by hand, the schedule that gives full blocks further passes, and what neither changes."""

from dataclasses import replace

import pytest

import contract
from fakes import ScriptedPredictor, steps
from unmask.caches import CACHES
from unmask.core.compose import check_composition
from unmask.core.denoise import Step
from unmask.core.schedules import Pipelined, Schedule, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Kind, Trajectory
from unmask.decoders import DECODERS
from unmask.decoders.edit import Edit
from unmask.decoders.threshold import Dynamic, Threshold
from unmask.decoders.wino import Wino
from unmask.errors import CompositionError

POLISHED = Sequential(2, polish=True)


def written(run: list[Step]) -> list[list[tuple[int, int]]]:
    """(slot, token) of every commit and edit, by step."""
    return [
        [(slot, int(step.after.tokens[0, slot])) for slot in step.move.commit[0].nonzero()[:, 0].tolist()]
        for step in run
    ]


SCRIPT = [
    {1: (1, 0.95), 2: (2, 0.5)},
    {1: (3, 0.92), 2: (2, 0.95)},  # slot 1 is edited while slot 2 is committed
    {1: (3, 0.99), 2: (4, 0.89)},  # not sure enough to edit, so this pass closes the block
    {3: (5, 0.95), 4: (6, 0.95)},
    {3: (5, 0.95), 4: (7, 0.95)},  # edited after the block was full
    {3: (5, 0.95), 4: (7, 0.95)},
]


def test_a_run_step_by_step() -> None:
    run = steps(ScriptedPredictor(SCRIPT), Edit(Threshold(0.9)), length=4, schedule=POLISHED)
    assert written(run) == [[(1, 1)], [(1, 3), (2, 2)], [], [(3, 5), (4, 6)], [(4, 7)], []]
    assert run[-1].after.tokens[0].tolist() == [0, 3, 2, 5, 7]
    assert [int(step.window.age) for step in run] == [0, 1, 2, 0, 1, 2], "a block opens at age 0"


def test_without_further_passes_only_an_open_block_is_edited() -> None:
    run = steps(ScriptedPredictor([*SCRIPT[:2], SCRIPT[3]]), Edit(Threshold(0.9)), length=4, schedule=Sequential(2))
    assert written(run) == [[(1, 1)], [(1, 3), (2, 2)], [(3, 5), (4, 6)]]


def test_a_record_has_an_edit_as_a_revocation_and_a_commit_and_replays_it() -> None:
    start = DenoisingState.start([[0]], 4, mask_id=9)
    run = Trajectory.collect(start, steps(ScriptedPredictor(SCRIPT), Edit(Threshold(0.9)), length=4, schedule=POLISHED))
    assert run.final().tokens[0].tolist() == [0, 3, 2, 5, 7] and run.nfe(0) == 6
    edits = [slot for slot, kind in zip(run.slot.tolist(), run.kind.tolist(), strict=True) if kind == Kind.REVOKE]
    assert edits == [1, 4]
    now = (run.step == 1) & (run.slot == 1)
    assert run.kind[now].tolist() == [Kind.REVOKE, Kind.COMMIT]
    assert run.confidence[now].tolist() == pytest.approx([0.0, 0.92])


def test_the_bound_itself_edits_nothing() -> None:
    script = [{1: [0.0, 1.0, 0.0, 0.0], 2: [0.4, 0.3, 0.3, 0.0]}, {1: [0.5, 0.0, 0.5, 0.0]}]
    for threshold, kept in ((0.5, True), (0.499, False)):
        predictor = ScriptedPredictor(script, vocab_size=4)
        run = steps(predictor, Edit(Threshold(0.9), threshold), length=2, schedule=Sequential(2))
        assert (int(run[-1].after.tokens[0, 1]) == 1) is kept


def test_further_passes_are_limited() -> None:
    flipping = [{1: (1 + turn % 2, 0.95)} for turn in range(9)]
    run = steps(ScriptedPredictor(flipping), Edit(Threshold(0.9), passes=3), length=1, schedule=POLISHED)
    assert written(run) == [[(1, 1)], [(1, 2)], [(1, 1)], [(1, 2)], []]


def test_a_bound_above_1_is_the_inner_method_with_a_closing_pass_per_block() -> None:
    schedule = Sequential(8, polish=True)
    for family in ("llada", "dream"):
        state = replace(contract.first_state(family), end_ids=())  # blocks behind an end are not polished
        none = CACHES.make("none")
        plain = contract.run(family, state, Dynamic(0.2), Sequential(8), none)
        edited = contract.run(family, state, Edit(Dynamic(0.2), threshold=1.1), schedule, none)
        for row in range(3):
            tokens, nfe = contract.answer(plain, row)
            blocks = -(-contract.LENGTHS[row] // 8)
            assert contract.answer(edited, row) == (tokens, nfe + blocks)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual", "delayed(every=4)", "finished-blocks"])
def test_polished_blocks_keep_the_invariants_of_a_batch_with_caches(family: str, cache: str) -> None:
    decoder, schedule = Edit(Threshold(0.8), threshold=0.1, passes=4), Sequential(5, polish=True)
    contract.assert_batch_equals_alone(family, decoder, schedule, CACHES.make(cache))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_stopping_early_keeps_the_text_of_polished_blocks(family: str) -> None:
    decoder, schedule = Edit(Threshold(0.8), threshold=0.1, passes=4), Sequential(5, polish=True)
    contract.assert_early_stop_keeps_the_text(family, decoder, schedule, CACHES.make("none"))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_cache_of_finished_blocks_stays_exact(family: str) -> None:
    decoder, schedule = Edit(Threshold(0.8), threshold=0.1, passes=4), Sequential(4, polish=True)
    contract.assert_exact_cache_equals_none(family, decoder, schedule, CACHES.make("finished-blocks"))


def test_an_end_token_is_final_only_when_its_block_is_polished() -> None:
    script = [{1: (8, 0.95), 2: (1, 0.95)}, {1: (3, 0.95)}, {}, {3: (8, 0.95), 4: (1, 0.95)}]
    predictor = ScriptedPredictor(script, end_ids=(8,))
    run = steps(predictor, Edit(Threshold(0.9)), length=6, schedule=POLISHED, stop=Stopping("tail"))
    assert run[-1].after.tokens[0].tolist()[:4] == [0, 3, 1, 8]
    assert len(run) == 5, "what lies behind the end has no passes of its own"


@pytest.mark.parametrize(
    ("decoder", "schedule"), [(Edit(Wino()), Sequential(4)), (Edit(Threshold()), Pipelined(4, 1.0, 1.0))]
)
def test_what_does_not_go_with_edits_is_refused(decoder: Edit, schedule: Schedule) -> None:
    with pytest.raises(CompositionError):
        check_composition(decoder, schedule, CACHES.make("none"), "block_causal")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": -1}, "passes must be a number of forward passes from 0 up: got -1"),
        ({"threshold": float("nan")}, "threshold must be a number"),
    ],
)
def test_senseless_fields_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Edit(Threshold(), **options)  # type: ignore[arg-type]


def test_a_limit_of_steps_and_polish_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        Sequential(4, block_steps=2, polish=True)


def test_the_public_name() -> None:
    assert DECODERS.make("edit(dynamic(threshold=0.95), threshold=0.9)") == Edit(Dynamic(0.95), 0.9)
