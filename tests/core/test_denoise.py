"""The loop: its limits are the plain samplers, and a shift, a cache or extra slots change nothing else.

Extra slots are tried with `Shadowing`, a method of this file that shows masked copies of slots, as published revoking
methods do, and never reads what they say.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from fakes import FunctionPredictor, ScriptedPredictor, steps
from unmask.caches import CACHES, KVStore
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import Step, denoise
from unmask.core.prediction import Prediction
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Schedule, Sequential, Whole
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.core.window import Window
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Factor, Threshold
from unmask.errors import StalledDecoding
from unmask.models.backbone import Backbone
from unmask.models.predictor import BackbonePredictor

MASK = 9
FAMILIES = ["llada", "dream"]


def predictor_of(family: str, attention: str = "bidirectional") -> BackbonePredictor:
    predictor = contract.model(family, attention).predictor
    assert isinstance(predictor, BackbonePredictor)
    return predictor


def run(predictor: Any, state: DenoisingState, decoder: Decoder, schedule: Schedule, cache: str = "none") -> list[Step]:
    return list(
        denoise(
            predictor,
            state,
            decoder,
            schedule=schedule,
            cache=CACHES.make(cache),
            sampling=Sampling(precision=torch.float64),
            stop=Stopping("none"),
        )
    )


def moves(family: str, decoder: Decoder, schedule: Schedule) -> list[tuple[int, int, int, int]]:
    """(row, step, slot, token) of every commit."""
    trajectory = contract.run(family, contract.first_state(family), decoder, schedule, CACHES.make("none"))
    columns = (getattr(trajectory, name).tolist() for name in ("row", "step", "slot", "token"))
    return sorted(zip(*columns, strict=True))


# Limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "spec"),
    [("llada", "low-confidence"), ("dream", "threshold(threshold=0.1)"), ("llada", "random"), ("dream", "entropy")],
)
def test_blocks_of_one_slot_are_greedy_decoding_from_left_to_right(family: str, spec: str) -> None:
    predictor = predictor_of(family)
    state = contract.first_state(family, (1,))
    tokens = state.tokens.clone()
    for slot in state.masked[0].nonzero()[:, 0].tolist():  # the plain loop: one whole pass per token
        with torch.no_grad():
            logits = predictor.backbone(tokens)[0, slot - predictor.facts.shift]
        logits[list(predictor.facts.banned_ids)] = float("-inf")
        tokens[0, slot] = logits.argmax()
    taken = run(predictor, state, DECODERS.make(spec), Sequential(1))
    assert torch.equal(taken[-1].after.tokens, tokens)
    assert [step.move.commit[0].nonzero().tolist() for step in taken] == [
        [[slot]] for slot in state.masked[0].nonzero()[:, 0].tolist()
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bound_that_nothing_passes_is_low_confidence_one_by_one(family: str) -> None:
    one_by_one = moves(family, LowConfidence(), Sequential(8))
    assert moves(family, Threshold(1.1), Sequential(8)) == one_by_one
    assert moves(family, Factor(1e-12), Sequential(8)) == one_by_one


@pytest.mark.parametrize("decoder", [Threshold(0.0), Threshold(-1.0), Factor(1e6)], ids=["0", "below", "factor"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bound_that_everything_passes_takes_one_forward_per_block(family: str, decoder: Decoder) -> None:
    taken = moves(family, decoder, Sequential(8))
    for row, length in enumerate(contract.LENGTHS):
        mine = [(step, slot) for owner, step, slot, _ in taken if owner == row]
        start = len(contract.PROMPTS[row])
        assert mine == [((slot - start) // 8, slot) for slot in range(start, start + length)]


# The shift -----------------------------------------------------------------------------------------------------------


class OneToTheLeft(Backbone):
    """The same network, whose row j says what row j + 1 said."""

    def run(self, *arguments: Any) -> Tensor:
        return super().run(*arguments).roll(-1, dims=1)


@pytest.fixture(scope="module")
def shifted() -> BackbonePredictor:
    plain = predictor_of("llada")
    backbone = OneToTheLeft(plain.backbone.config).double()
    backbone.load_state_dict(plain.backbone.state_dict())
    return BackbonePredictor(backbone, replace(plain.facts, shift=1))


PLAIN = [spec for spec in contract.DECODER_SPECS if not DECODERS.make(spec).reshapes]


@pytest.mark.parametrize("spec", PLAIN)  # an extra slot asks a shifted model by a copy of the left neighbour
def test_a_model_whose_rows_are_shifted_decodes_the_same(shifted: BackbonePredictor, spec: str) -> None:
    state = contract.first_state("llada", (1, 2), infill=True)
    plain, moved = (
        run(predictor, state, DECODERS.make(spec), Sequential(8)) for predictor in (predictor_of("llada"), shifted)
    )
    assert len(plain) == len(moved)
    for ours, theirs in zip(plain, moved, strict=True):
        assert torch.equal(ours.move.commit, theirs.move.commit)
        assert torch.equal(ours.after.tokens, theirs.after.tokens)


def test_the_shift_is_not_a_matter_of_facts_alone(shifted: BackbonePredictor) -> None:
    """The same rows with the wrong facts say something else, so the tests above can fail."""
    wrong = BackbonePredictor(shifted.backbone, replace(shifted.facts, shift=0))
    state = contract.first_state("llada", (1,))
    ends = [run(one, state, LowConfidence(), Sequential(8))[-1].after.tokens for one in (shifted, wrong)]
    assert not torch.equal(*ends)


# Extra slots ---------------------------------------------------------------------------------------------------------

EXTRA = 3


@dataclass(frozen=True, slots=True)
class Shadowing(Decoder):
    """A threshold that also shows a masked copy of the window's first three slots; nobody but the copy sees it."""

    reshapes = True

    def view(self, state: DenoisingState, window: Window, memory: Any) -> Canvas:
        last = state.exists.sum(-1, keepdim=True) - 1
        copied = torch.minimum(window.first[:, None] + torch.arange(EXTRA)[None], last)
        tokens = torch.nn.functional.pad(state.tokens, (0, EXTRA), value=state.mask_id)
        positions = torch.cat((state.slots.expand_as(state.tokens), copied), dim=1)
        slots = state.num_slots
        attends = torch.ones(state.num_rows, slots + EXTRA, slots + EXTRA, dtype=torch.bool)
        attends[:, :, slots:] = torch.eye(slots + EXTRA, dtype=torch.bool)[:, slots:]
        attends[:, slots:, :slots] = torch.arange(slots) != copied[:, :, None]
        return Canvas(tokens, positions, attends, extra=EXTRA)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Any) -> Move:
        return Threshold(0.8).decide(state, window, prediction, memory)


class Watched(BackbonePredictor):
    """Hands out its store, so that a test can look into it."""

    store: KVStore

    def open_store(self, state: DenoisingState, cache: Any) -> KVStore:
        self.store = super().open_store(state, cache)
        return self.store


def side_by_side(model: BackbonePredictor, state: DenoisingState, cache: str) -> Any:
    """Steps and stores of a run without and with extra slots, in pairs. Nobody leaves before the end."""
    watched = [Watched(model.backbone, model.facts) for _ in range(2)]
    loops = [
        denoise(
            predictor,
            state,
            decoder,
            schedule=Sequential(8),
            cache=CACHES.make(cache),
            sampling=Sampling(precision=torch.float64),
            stop=Stopping("none"),
        )
        for predictor, decoder in zip(watched, (Threshold(0.8), Shadowing()), strict=True)
    ]
    while (plain := next(loops[0], None)) is not None:
        yield plain, next(loops[1]), watched[0].store, watched[1].store
    assert next(loops[1], None) is None


MODELS = [("llada", "bidirectional"), ("dream", "bidirectional"), ("llada", "block_causal")]


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize(("family", "attention"), MODELS)
def test_extra_slots_change_no_logits_and_leave_nothing_in_the_store(family: str, attention: str, cache: str) -> None:
    model = predictor_of(family, attention)
    state = contract.first_state(family, (1,), infill=True)
    passes = 0
    for plain, extended, small, large in side_by_side(model, state, cache):
        passes += 1
        asked = int(plain.prediction.work.num_asked)
        ours, theirs = plain.prediction.logits[0], extended.prediction.logits[0]
        assert theirs.shape[0] == asked + EXTRA
        finite = ours.isfinite()
        torch.testing.assert_close(theirs[:asked][finite], ours[finite], rtol=0, atol=1e-12)
        assert torch.equal(plain.after.tokens, extended.after.tokens)
        assert torch.equal(small.computed_for, large.computed_for)
        for mine, other in zip(small.keys + small.values, large.keys + large.values, strict=True):
            torch.testing.assert_close(other, mine, rtol=0, atol=1e-12)
    assert passes > 2


@pytest.mark.parametrize("attention", ["bidirectional", "block_causal"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_the_copy_of_a_masked_slot_says_what_the_slot_says(cache: str, attention: str) -> None:
    """It stands at the same position and sees the same keys, with a mask of its own in the place of the slot's mask."""
    state = contract.first_state("llada", (1,))
    compared = 0
    for _, step, _, _ in side_by_side(predictor_of("llada", attention), state, cache):
        said, work = step.prediction.logits[0], step.prediction.work
        places = {slot: place for place, slot in enumerate(work.asked[0, : int(work.num_asked)].tolist())}
        for slot in range(state.num_slots, state.num_slots + EXTRA):
            original = int(step.canvas.positions[0, slot])
            if original in places:
                mine, other = said[places[slot]], said[places[original]]
                torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)  # rotary positions are float32
                compared += 1
    assert compared >= EXTRA


@pytest.mark.parametrize("family", FAMILIES)
def test_extra_slots_are_asked_about_at_every_step_and_counted_as_rows(family: str) -> None:
    state = contract.first_state(family, (0, 1))
    plain = run(predictor_of(family), state, Threshold(0.8), Sequential(8), "dual")
    taken = run(predictor_of(family), state, Shadowing(), Sequential(8), "dual")
    for ours, theirs in zip(plain, taken, strict=True):
        assert theirs.prediction.known[:, -EXTRA:].all() and theirs.canvas.extra == EXTRA
        assert (theirs.rows_computed - ours.rows_computed >= EXTRA).all()
        if family == "llada":  # a shifted model may need one row more, which speaks about the first extra slot
            assert (theirs.rows_computed - ours.rows_computed == EXTRA).all()


# Rows, memory and progress -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembering(Decoder):
    """Commit the leftmost slot, and remember per row its stream and how often it was asked."""

    def begin(self, state: DenoisingState) -> tuple[Tensor, Tensor]:
        return state.seed, torch.zeros_like(state.seed)

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Any) -> tuple[Move, Any]:
        owner, asked = memory
        assert torch.equal(owner, state.seed), "a memory was handed to another row"
        assert torch.equal(asked, state.step)
        return LowConfidence().decide(state, window, prediction, None), (owner, asked + 1)


def test_a_memory_follows_its_row_when_others_leave() -> None:
    state = DenoisingState.start([[0]] * 4, [3, 1, 4, 2], mask_id=MASK, seeds=[7, 5, 6, 4])
    taken = steps(ScriptedPredictor([{}]), Remembering(), state=state)
    assert [step.row_ids.tolist() for step in taken] == [[0, 1, 2, 3], [0, 2, 3], [0, 2], [2]]


def test_each_step_begins_where_the_last_one_ended() -> None:
    state = DenoisingState.start([[0], [0]], [5, 2], mask_id=MASK)
    taken = steps(ScriptedPredictor([{}]), LowConfidence(), state=state)
    current = {0: state.tokens[0], 1: state.tokens[1]}
    for step in taken:
        for place, row in enumerate(step.row_ids.tolist()):
            assert torch.equal(step.before.tokens[place], current[row])
            current[row] = step.after.tokens[place]
    assert len(taken) == 5 and not (torch.stack(list(current.values())) == MASK)[0].any()


def test_the_loop_computes_one_pass_at_a_time() -> None:
    predictor = ScriptedPredictor([{}])
    state = DenoisingState.start([[0]], 3, mask_id=MASK)
    parts: Any = {"schedule": Whole(), "cache": CACHES.make("none")}
    loop = denoise(predictor, state, LowConfidence(), **parts)  # type: ignore[arg-type]
    assert not predictor.seen
    for number in (1, 2):
        next(loop)
        assert len(predictor.seen) == number


def test_nothing_to_fill_takes_no_step() -> None:
    state = DenoisingState.start([[0]], 2, mask_id=MASK)
    full = state.fill(state.masked, torch.tensor([3]))
    predictor = ScriptedPredictor([{}])
    assert steps(predictor, LowConfidence(), state=full) == [] and not predictor.seen


def test_a_row_whose_blocks_are_used_up_is_finished_with_its_masks() -> None:
    state = DenoisingState.start([[0], [0]], [4, 2], mask_id=MASK)
    taken = steps(ScriptedPredictor([{}]), LowConfidence(), state=state, schedule=Sequential(4, block_steps=2))
    assert len(taken) == 2
    assert taken[-1].after.masked.sum(-1).tolist() == [2, 0]


@dataclass(frozen=True, slots=True)
class Lazy(Decoder):
    """Commit nothing before its turn."""

    turn: int = 2
    may_idle: bool = False

    @property
    def idles(self) -> bool:
        return self.may_idle

    def decide(self, state: DenoisingState, window: Window, prediction: Prediction, memory: Any) -> Move:
        return self.move(
            state, self.eligible(state, window, prediction) & (state.step >= self.turn)[:, None], prediction
        )


def test_a_step_that_changes_nothing_is_an_error_that_names_the_method() -> None:
    with pytest.raises(StalledDecoding, match=r"Lazy\(.*\) changed nothing at a step that has to commit"):
        steps(ScriptedPredictor([{}]), Lazy(), length=3)


def test_one_idle_row_among_others_is_an_error_too() -> None:
    state = DenoisingState.start([[0], [0]], 3, mask_id=MASK)
    late = replace(state, step=torch.tensor([2, 0]))
    with pytest.raises(StalledDecoding):
        steps(ScriptedPredictor([{}]), Lazy(), state=late)


def test_a_method_with_a_fixed_number_of_steps_may_idle() -> None:
    taken = steps(ScriptedPredictor([{}]), Lazy(may_idle=True), length=3)
    assert [int(step.move.commit.sum()) for step in taken] == [0, 0, 3]


def test_a_held_end_token_does_not_stall_a_schedule_that_leaves_masks_behind() -> None:
    """Block 0 keeps slot 4 for good, so from step 3 on every end token of block 1 waits for what never comes."""
    script = {slot: (1 if slot < 5 else 8, 0.5) for slot in range(1, 9)}
    predictor = ScriptedPredictor([script], mask_id=MASK, end_ids=(8,))
    schedule, stop = Sequential(4, block_steps=2), Stopping("none", hold_end=True)
    state = DenoisingState.start([[0]], 8, mask_id=MASK)
    assert len(steps(predictor, Threshold(0.95), state=state, schedule=schedule, stop=stop)) == 4


def test_the_state_that_was_given_is_not_touched() -> None:
    state, copy = (contract.first_state("llada") for _ in range(2))
    contract.run("llada", state, Threshold(0.5), SCHEDULES.make("whole"), CACHES.make("dual"), stop="tail")
    for name in ("tokens", "masked", "committed_at", "step"):
        assert torch.equal(getattr(state, name), getattr(copy, name))


def test_a_fill_behind_the_end_is_told_apart_from_the_move() -> None:
    predictor = ScriptedPredictor([{1: (1, 0.9), 2: (8, 0.9)}], mask_id=MASK, end_ids=(8,))
    (step,) = steps(predictor, Threshold(0.9), length=4, stop=Stopping("tail"))
    assert step.move.commit[0].tolist() == [False, True, True, False, False]
    assert step.filled[0].tolist() == [False, False, False, True, True]
    assert step.after.tokens.tolist() == [[0, 1, 8, 8, 8]]


def test_forbidden_tokens_are_out_before_anything_is_measured() -> None:
    predictor = FunctionPredictor(
        lambda tokens: torch.tensor([2.0, 1.0, 0.0]).log().expand(*tokens.shape, 3), vocab_size=3
    )
    sampling = Sampling(forbid=(0,), precision=torch.float64)
    first = steps(predictor, Threshold(0.9), length=2, sampling=sampling)[0].prediction
    assert first.tokens[0, 1:].tolist() == [1, 1]
    assert first.confidence[0, 1:].tolist() == [1.0, 1.0]


def test_a_run_is_a_trajectory_with_as_many_passes_as_steps() -> None:
    state = contract.first_state("dream", (0, 1))
    taken = run(predictor_of("dream"), state, Threshold(0.8), Sequential(8))
    trajectory = Trajectory.collect(state, iter(taken))
    for row in range(2):
        mine = [int(step.rows_computed[place]) for step in taken for place in (step.row_ids == row).nonzero()[:, 0]]
        assert (trajectory.nfe(row), trajectory.rows_computed(row)) == (len(mine), sum(mine))


# Books kept of every pass --------------------------------------------------------------------------------------------


class Booked(BackbonePredictor):
    """Keeps what every pass was shown, its work, and the tokens for which values were stored before it."""

    def open_store(self, state: DenoisingState, cache: Any) -> KVStore:
        self.books: list[tuple[Canvas, ForwardPlan, Tensor]] = []
        return super().open_store(state, cache)

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: Any) -> Tensor:
        self.books.append((canvas, work, store.computed_for.clone()))
        return super().__call__(canvas, work, cache, store)


BLOCKS, SLIDING = "sequential(block_length=8)", "sliding(length=4)"
LEAP = "leap(early=0.3, candidate=0.05)"


@pytest.mark.parametrize(
    ("spec", "schedule", "cache"),
    [
        *(("wino(draft=0.3)", BLOCKS, cache) for cache in ("prefix", "dual", "delayed", "window", "finished-blocks")),
        *((LEAP, BLOCKS, cache) for cache in ("prefix", "dual", "delayed", "window")),
        *((spec, SLIDING, "window") for spec in ("wino(draft=0.3)", LEAP, "dc-leap(commit=0.5, draft=0.2)")),
        ("dc-leap(commit=0.5, draft=0.2)", SLIDING, "delayed(since='start')"),
        ("prophet(wino(draft=0.3))", BLOCKS, "delayed"),
        ("lopa(threshold(threshold=0.8), width=2)", "pipelined(block_length=4, add=0.5)", "finished-blocks"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_that_is_not_computed_shows_the_token_it_was_computed_for(
    family: str, spec: str, schedule: str, cache: str
) -> None:
    """Commits, revocations, drafts shown, changed or masked again, and new blocks all change what a slot shows."""
    predictor, kept = Booked(predictor_of(family).backbone, predictor_of(family).facts), 0
    state = contract.first_state(family, infill=True)
    run(predictor, state, DECODERS.make(spec), SCHEDULES.make(schedule), cache)
    for canvas, work, computed_for in predictor.books:
        for row in range(len(canvas.tokens)):
            rows = work.rows[row, : int(work.num_rows[row])].tolist()
            stored = [slot for slot in work.visible[row].nonzero()[:, 0].tolist() if slot not in rows]
            assert canvas.tokens[row, stored].tolist() == computed_for[row, stored].tolist()
            kept += len(stored)
    assert kept, "the cache is not used at all"


@pytest.mark.parametrize("cache", ["none", "dual"])
@pytest.mark.parametrize("spec", ["wino(draft=0.3)", LEAP, "threshold(threshold=0.6)"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_question_has_one_row_to_answer_it_and_rows_are_counted(family: str, spec: str, cache: str) -> None:
    """And extra slots stand at places of the open window, or left of one of them where the model is shifted."""
    state, extra = contract.first_state(family, infill=True), 0
    for step in run(predictor_of(family), state, DECODERS.make(spec), Sequential(8), cache):
        work, size, shift = step.prediction.work, step.canvas.num_answer_slots, step.before.shift
        assert torch.equal(step.rows_computed, work.num_rows)
        for row in range(len(step.row_ids)):
            rows = work.rows[row, : int(work.num_rows[row])].tolist()
            asked = work.asked[row, : int(work.num_asked[row])].tolist()
            assert len(set(rows)) == len(rows) and len(set(asked)) == len(asked)
            answering = [int(work.rows[row, place]) for place in work.speakers[row, : len(asked)].tolist()]
            assert answering == [slot if slot >= size else max(slot - shift, 0) for slot in asked]
            opened = step.window.open[row].nonzero()[:, 0].tolist()
            places = {step.canvas.positions[row, slot].item() for slot in rows if slot >= size}
            assert places <= set(opened) | {slot - shift for slot in opened}
            extra += len(places)
    assert (extra > 0) == DECODERS.make(spec).reshapes
