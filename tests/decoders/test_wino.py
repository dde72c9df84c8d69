"""WINO: the rules worked out by hand, the layout of its shadows, and what has to hold on real networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from fakes import Entry, Fake, ScriptedPredictor, steps
from unmask.caches import CACHES
from unmask.core.canvas import Canvas, ForwardPlan, plain_view, plan
from unmask.core.denoise import Step
from unmask.core.sampling import Sampling, ban
from unmask.core.schedules import Sequential, Whole
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Kind
from unmask.decoders import DECODERS
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.decoders.wino import Wino, allowance, shadowed
from unmask.errors import RequestError
from unmask.models.guidance import Guided
from unmask.models.predictor import BackbonePredictor
from unmask.models.tiny import tiny_backbone, tiny_facts

MASK, FAMILIES = 9, ("llada", "dream")
EAGER = Wino(draft=0.3, verify=0.9)  # takes a lot back


def slots(flags: Tensor | None) -> list[int]:
    """True slots of the only row."""
    return [] if flags is None else flags[0].nonzero()[:, 0].tolist()


def moves(run: list[Step]) -> list[tuple[list[tuple[int, int]], list[int]]]:
    """What every step of a one-row run committed, as (slot, token) pairs, and took back."""
    return [
        ([(s, int(step.after.tokens[0, s])) for s in slots(step.move.commit)], slots(step.move.revoke)) for step in run
    ]


def committed(length: int, *counts: int) -> DenoisingState:
    """One given slot, then `length` answer slots of which step k committed the next `counts[k]`, all to token 1."""
    state = DenoisingState.start([[0]], length, mask_id=MASK)
    for count in counts:
        first = 1 + int((state.answer & ~state.masked).sum())
        commit = (state.slots >= first) & (state.slots < first + count)
        state = state.apply(Move(commit, torch.ones_like(state.tokens)))
    return state


# The rules -----------------------------------------------------------------------------------------------------------


def test_a_step_commits_and_takes_back_by_the_same_forward_and_what_was_taken_back_may_return() -> None:
    """Six slots; the shadow of slot s is slot 6 + s. Follow the script with the docstring of `Wino` at hand."""
    script = [
        {1: (1, 0.95), 2: (2, 0.7), 3: (3, 0.65), 4: (4, 0.55)},  # three exceed 0.6
        # slots 2 and 3 are refuted, and 3 - 1 may go
        {4: (4, 0.8), 5: (5, 0.7), 7: (1, 0.95), 8: (2, 0.3), 9: (3, 0.5)},
        # slot 2 returns with another token and slot 3 with its old one; of the refuted 4 and 5 only 2 - 1 may go
        {2: (6, 0.8), 3: (3, 0.85), 7: (1, 0.95), 10: (4, 0.4), 11: (5, 0.3)},
        # one is forced, so the refuted slot 4 stays
        {5: (7, 0.5), 6: (8, 0.4), 10: (4, 0.2), 7: (1, 0.95), 8: (6, 0.95), 9: (3, 0.95)},
        {6: (8, 0.9), 10: (4, 0.2)},  # the step before committed one: nothing may go
    ]
    run = steps(ScriptedPredictor(script), Wino(draft=0.6, verify=0.9), length=6)
    assert moves(run) == [
        ([(1, 1), (2, 2), (3, 3)], []),
        ([(4, 4), (5, 5)], [2, 3]),
        ([(2, 6), (3, 3)], [5]),
        ([(5, 7)], []),
        ([(6, 8)], []),
    ]
    assert run[-1].after.tokens[0].tolist() == [0, 1, 6, 3, 4, 7, 8]
    assert [step.canvas.extra for step in run] == [0, 6, 6, 6, 0], "no shadows where nothing can be taken back"


def test_both_bounds_keep_things_as_they_are() -> None:
    """A confidence on `draft` does not exceed it, a belief on `verify` is not below it."""
    half = 0.5
    script: list[Entry] = [
        {1: (1, 0.9), 2: (1, 0.8), 3: (1, 0.8)},
        {4: (1, half), 5: (1, 0.6), 6: (2, 0.6), 7: (1, half), 9: (1, 0.9)},
    ]
    run = steps(ScriptedPredictor(script, vocab_size=4), Wino(draft=half, verify=half), length=6)
    assert float(run[1].prediction.confidence[0, 4]) == half, "the test wants the bound itself"
    assert float(run[1].prediction.confidence_in(run[1].before.tokens)[0, 7]) == half, "and here too"
    assert moves(run)[1] == ([(5, 1), (6, 2)], [2])  # slot 2 is refuted: its shadow, slot 8, is flat


@pytest.mark.parametrize(("masked", "most"), [(128, 20), (28, 19), (20, 14), (10, 7), (7, 5), (4, 5), (1, 5)])
def test_a_step_commits_no_more_than_a_share_of_what_is_masked(masked: int, most: int) -> None:
    assert Wino().cap(torch.tensor([masked])).tolist() == [most]
    script = [{slot: (1, 0.7 + 0.002 * slot) for slot in range(1, masked + 1)}]
    first = steps(ScriptedPredictor(script), Wino(), length=masked)[0]
    best = list(range(masked + 1 - min(most, masked), masked + 1))
    assert slots(first.move.commit) == best, "the most confident ones, and the highest slot was it"


def test_the_fields_of_the_cap() -> None:
    script = [{slot: (1, 0.9) for slot in range(1, 13)}]
    counts = [
        len(slots(steps(ScriptedPredictor(script), wino, length=12)[0].move.commit))
        for wino in (Wino(share=0.5, floor=1), Wino(share=0.5, floor=8), Wino(share=1.0, ceiling=9))
    ]
    assert counts == [6, 8, 9]


@pytest.mark.parametrize(("before", "gone"), [(3, [2, 4]), (1, []), (30, [1, 2, 3, 4, 5])])
def test_fewer_slots_are_taken_back_than_the_step_before_committed(before: int, gone: list[int]) -> None:
    """Five slots are below the bound: the least believed go, one fewer than `before`."""
    state = committed(40, 5, before)
    beliefs = dict(zip(range(1, 6), (0.5, 0.2, 0.4, 0.15, 0.3), strict=True))
    beliefs |= {slot: 0.99 for slot in range(6, 6 + before)}
    script: Entry = {38: (1, 0.95), 39: (1, 0.95)} | {40 + slot: (1, belief) for slot, belief in beliefs.items()}
    step = steps(ScriptedPredictor([script]), Wino(), state=state)[0]
    assert slots(step.move.commit) == [38, 39]
    assert slots(step.move.revoke) == gone


def test_a_step_that_commits_one_slot_takes_nothing_back() -> None:
    script: Entry = {39: (1, 0.95)} | {40 + slot: (1, 0.2) for slot in range(1, 6)}
    step = steps(ScriptedPredictor([script]), Wino(), state=committed(40, 5, 30))[0]
    assert (slots(step.move.commit), slots(step.move.revoke)) == ([39], [])
    assert step.canvas.extra == 40, "it had been looked at"


def test_a_block_that_is_full_is_never_looked_at_again() -> None:
    """Blocks of 3: the second one opens with three slots committed by the step before, and none may be taken back."""
    script: list[Entry] = [
        {1: (1, 0.9), 2: (1, 0.9), 3: (1, 0.9)},
        {4: (1, 0.9), 5: (1, 0.9)},
        {6: (1, 0.9)},
    ]
    run = steps(ScriptedPredictor(script), Wino(), length=6, schedule=Sequential(3))
    assert [step.canvas.extra for step in run] == [0, 0, 0]
    assert int(allowance(run[1].before, run[1].window)) == 0
    assert int(allowance(run[2].before, run[2].window)) == 1, "but one slot is left, and one commit revokes nothing"


def test_a_drawn_token_is_compared_with_the_best_one() -> None:
    """The shadow of slot 1 gives its token 0.25 and the best one 0.3; 0.25 is below 0.5, but above half of 0.3."""
    flat = [0.3, 0.25, 0.2, 0.15, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0]
    script: Entry = {5: (1, 0.99), 6: (1, 0.99)} | {6 + slot: flat for slot in range(1, 5)}
    state = committed(6, 4)
    taken = {}
    for name, wino, temperature in (
        ("greedy", Wino(verify=0.5), 0.0),
        ("sampled", Wino(verify=0.5), 0.1),
        ("sampled, strict", Wino(verify=0.5, relative=False), 0.1),
        ("relative, high", Wino(verify=0.9, relative=True), 0.0),
    ):
        sampling = Sampling(temperature=temperature, precision=torch.float64)
        step = steps(ScriptedPredictor([script]), wino, state=state, sampling=sampling)[0]
        assert slots(step.move.commit) == [5, 6]
        taken[name] = len(slots(step.move.revoke))
    assert taken == {"greedy": 3, "sampled": 0, "sampled, strict": 3, "relative, high": 3}


def test_text_is_settled_when_its_window_is_full_and_not_before() -> None:
    """An end token stands behind a complete prefix after the first step, and is taken back by the second one."""
    end = 8
    script: list[Entry] = [
        {1: (1, 0.9), 2: (end, 0.9), 3: (2, 0.7)},
        {4: (3, 0.9), 5: (4, 0.9), 7: (1, 0.95), 8: (end, 0.2), 9: (2, 0.95)},
        {2: (5, 0.9), 6: (end, 0.9), 7: (1, 0.95), 9: (2, 0.95), 10: (3, 0.95), 11: (4, 0.95)},
    ]
    predictor = ScriptedPredictor(script, end_ids=(end,))
    run = steps(predictor, Wino(), length=6, stop=Stopping("tail"))
    assert [slots(step.filled) for step in run] == [[]] * len(run)
    assert slots(run[1].move.revoke) == [2]
    assert run[-1].after.tokens[0].tolist() == [0, 1, 5, 2, 3, 4, end]
    blocks = steps(predictor, Wino(), length=6, stop=Stopping("tail"), schedule=Sequential(2))
    assert [slots(step.filled) for step in blocks] == [[3, 4, 5, 6]], "a full window that holds an end closes the row"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("wino(share=1.5)", "share must be a share of the window's masked slots, 0 to 1: got 1.5"),
        ("wino(floor=0)", "floor must be at least 1 and at most ceiling: got floor=0, ceiling=20"),
        ("wino(floor=30)", "floor must be at least 1 and at most ceiling: got floor=30, ceiling=20"),
    ],
)
def test_senseless_fields_are_refused(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DECODERS.make(spec)
    with pytest.raises(ValueError, match="verify must be a number: got nan"):
        Wino(verify=float("nan"))
    with pytest.raises((ValueError, TypeError), match="shadows"):  # a TypeError where annotations are checked
        Wino(shadows="none")  # type: ignore[arg-type]


# The layout ----------------------------------------------------------------------------------------------------------


def first_committed(shift: int) -> DenoisingState:
    """Two given slots, a block of three, its first slot committed: o0 o1 o2 o3 o4."""
    state = DenoisingState.start([[5, 6]], 3, mask_id=MASK, shift=shift)
    commit = (state.slots == 2) & state.masked
    return state.apply(Move(commit, torch.full_like(state.tokens, 7)))


def seen(canvas: Canvas, names: Sequence[str]) -> dict[str, str]:
    """For every slot of a one-row canvas, the names of the slots it sees."""
    assert canvas.attends is not None
    return {
        name: " ".join(key for key, sees in zip(names, row, strict=True) if sees)
        for name, row in zip(names, canvas.attends[0].tolist(), strict=True)
    }


ANSWER = ["o0", "o1", "o2", "o3", "o4"]


def test_a_shadow_sees_everything_but_its_own_slot() -> None:
    state = first_committed(shift=0)
    canvas = shadowed(state, state.answer, state.answer & ~state.masked, mutual=True)
    assert canvas.tokens.tolist() == [[5, 6, 7, MASK, MASK, MASK, MASK, MASK]]
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4]]
    assert canvas.targets is not None and canvas.targets.tolist() == [[2, -1, -1]], "only the committed slot is asked"
    assert seen(canvas, [*ANSWER, "s2", "s3", "s4"]) == dict.fromkeys(ANSWER, "o0 o1 o2 o3 o4") | {
        "s2": "o0 o1 o3 o4 s2 s3 s4",
        "s3": "o0 o1 o2 o4 s2 s3 s4",
        "s4": "o0 o1 o2 o3 s2 s3 s4",
    }


def test_independent_shadows_are_made_for_what_is_verified_only() -> None:
    state = first_committed(shift=0)
    verified = state.answer & ~state.masked
    canvas = shadowed(state, verified, verified, mutual=False)
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 2]]
    assert seen(canvas, [*ANSWER, "s2"])["s2"] == "o0 o1 o3 o4 s2"
    alone = shadowed(state, state.answer, state.answer, mutual=False)
    assert seen(alone, [*ANSWER, "s2", "s3", "s4"])["s3"] == "o0 o1 o2 o4 s3"


def test_a_shifted_model_is_asked_by_a_copy_of_the_left_neighbour_that_sees_the_shadow() -> None:
    state = first_committed(shift=1)
    verified = state.answer & ~state.masked
    canvas = shadowed(state, state.answer, verified, mutual=True)
    assert canvas.tokens.tolist() == [[5, 6, 7, MASK, MASK, MASK, MASK, MASK, 6]]
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 1]]
    assert canvas.targets is not None and canvas.targets.tolist() == [[-1, -1, -1, 2]]
    assert seen(canvas, [*ANSWER, "s2", "s3", "s4", "c1"]) == dict.fromkeys(ANSWER, "o0 o1 o2 o3 o4") | {
        "s2": "o0 o1 o3 o4 s2 s3 s4",
        "s3": "o0 o1 o2 o4 s2 s3 s4",
        "s4": "o0 o1 o2 o3 s2 s3 s4",
        "c1": "o0 o3 o4 s2 s3 s4 c1",
    }
    apart = shadowed(state, verified, verified, mutual=False)
    assert seen(apart, [*ANSWER, "s2", "c1"])["c1"] == "o0 o3 o4 s2 c1"


def test_a_slot_without_a_left_neighbour_is_asked_by_a_mask_in_its_own_place() -> None:
    state = DenoisingState.from_canvas([[None, 4, None]], mask_id=MASK, shift=1)
    state = state.apply(Move(state.masked & (state.slots == 0), torch.ones_like(state.tokens)))
    first = state.slots == 0
    canvas = shadowed(state, first, first, mutual=False)
    assert (canvas.tokens.tolist(), canvas.positions.tolist()) == ([[1, 4, MASK, MASK, MASK]], [[0, 1, 2, 0, 0]])
    assert seen(canvas, ["o0", "o1", "o2", "s0", "c0"])["c0"] == "o1 o2 c0", "one mask in that place, not two"


@pytest.mark.parametrize(("shift", "together", "apart", "everything"), [(0, 6, 3, 6), (1, 6 + 3, 3 + 3, 6 + 6)])
def test_how_many_extra_slots_a_step_has(shift: int, together: int, apart: int, everything: int) -> None:
    """Six answer slots, three of them to verify; a shifted model needs a speaker per question on top."""
    state = replace(committed(6, 3), shift=shift)
    window = Whole().window(state, None)
    variants = (Wino(), Wino(shadows_see_each_other=False), Wino(shadows="all"))
    assert [one.view(state, window, None).extra for one in variants] == [together, apart, everything]


def test_a_row_without_anything_to_verify_has_no_shadows_beside_one_that_has() -> None:
    first, second = committed(4, 2), committed(4, 1)
    state = first.join(replace(second, seed=second.seed + 1))
    window = Whole().window(state, None)
    canvas = Wino().view(state, window, None)
    assert canvas.extra_exists is not None and canvas.extra_exists.tolist() == [[True] * 4, [False] * 4]
    work = plan(canvas, window, Wino().asks(state, window, canvas), None, 0)
    assert work.num_rows.tolist() == [9, 5]


def test_a_blind_pass_of_guidance_does_not_see_the_given_token_that_a_speaker_repeats() -> None:
    state = first_committed(shift=1)
    canvas = shadowed(state, state.answer, state.answer & ~state.masked, mutual=True)
    guided = Guided(ScriptedPredictor([{}], shift=1), 1.0)
    blind = guided.open_store(state, CACHES.make("none")).blind(canvas)
    assert blind.tokens.tolist() == [[MASK, MASK, 7, MASK, MASK, MASK, MASK, MASK, MASK]]


# Networks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_shadows_change_nothing_that_is_said_about_the_answer(family: str, mutual: bool) -> None:
    """Three ragged rows in the middle of a run: logits of masked slots with and without shadows, float64."""
    model, none = contract.model(family), CACHES.make("none")
    run = contract.steps(family, contract.first_state(family), LowConfidence(), Whole(), none)
    state = [next(run) for _ in range(3)][-1].after
    window = Whole().window(state, None)
    asked = state.masked & window.open
    said = []
    for canvas in (plain_view(state), shadowed(state, window.open, window.open & ~state.masked, mutual)):
        asks = torch.nn.functional.pad(asked, (0, canvas.extra))
        work = plan(canvas, window, asks, None, state.shift)
        said.append(model.predictor(canvas, work, none, model.predictor.open_store(state, none)))
    assert said[1].shape == said[0].shape
    torch.testing.assert_close(said[1], said[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_shadow_does_not_read_its_own_slot(shift: int) -> None:
    """In one layer nothing comes indirectly: only the token of another slot changes what the shadow says."""
    backbone = tiny_backbone(num_layers=1).double()
    facts = tiny_facts(backbone, shift=shift)
    predictor, none = BackbonePredictor(backbone, facts), CACHES.make("none")

    def said(second: int, third: int) -> Tensor:
        state = DenoisingState.start([[3, 4]], 4, mask_id=facts.mask_id, shift=shift)
        commit = (state.slots == 3) | (state.slots == 4)
        state = state.apply(Move(commit, torch.tensor([[0, 0, 0, second, third, 0]])))
        about = state.slots == 3
        canvas = shadowed(state, state.answer, about, mutual=True)
        asks = torch.cat((torch.zeros_like(about), canvas.targets == 3), dim=1)  # type: ignore[operator]
        work = plan(canvas, Whole().window(state, None), asks, None, shift)
        logits: Tensor = predictor(canvas, work, none, predictor.open_store(state, none))
        return logits.masked_fill(logits.isneginf(), 0.0)

    assert torch.equal(said(7, 8), said(9, 8))
    assert not torch.allclose(said(7, 8), said(7, 9), atol=1e-3)


@pytest.mark.parametrize("schedule", [Whole(), Sequential(8)], ids=["whole", "blocks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_bound_that_nothing_exceeds_is_low_confidence_one_at_a_time(family: str, schedule: Any) -> None:
    parts = schedule, CACHES.make("none")
    wino, plain = (
        contract.run(family, contract.first_state(family), one, *parts) for one in (Wino(1.1), LowConfidence())
    )
    assert torch.equal(wino.slot, plain.slot) and torch.equal(wino.token, plain.token)
    assert torch.equal(wino.passes, plain.passes), "and no row more is computed"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_verify_bound_of_0_without_a_cap_is_threshold_decoding(family: str) -> None:
    parts = Sequential(8), CACHES.make("none")
    uncapped = Wino(0.5, 0.0, floor=999, ceiling=999)
    wino, plain = (
        contract.run(family, contract.first_state(family), one, *parts) for one in (uncapped, Threshold(0.5))
    )
    assert torch.equal(wino.slot, plain.slot) and torch.equal(wino.token, plain.token)
    assert torch.equal(wino.passes, plain.passes)
    assert bool((wino.kind == Kind.COMMIT).all())


@pytest.mark.parametrize("wino", [EAGER, Wino(0.2, 0.95, shadows_see_each_other=False), Wino(0.1, 2.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_of_b_slots_is_full_after_b_steps_whatever_is_taken_back(family: str, wino: Wino) -> None:
    taken_back, size = 0, 8
    last: dict[int, tuple[int, int]] = {}  # row -> its block and what the step before committed there
    spent: dict[tuple[int, int], int] = {}  # (row, block) -> steps
    for step in contract.steps(family, contract.first_state(family), wino, Sequential(size), CACHES.make("none")):
        gone = torch.zeros_like(step.move.commit) if step.move.revoke is None else step.move.revoke
        assert not bool((gone & step.move.commit).any())
        for place, row in enumerate(step.row_ids.tolist()):
            block, count = int(step.window.first[place]), int(step.move.commit[place].sum())
            previous = last.get(row, (-1, 0))
            allowed = previous[1] - 1 if previous[0] == block else 0
            assert int(gone[place].sum()) <= max(allowed, 0)
            assert not bool(gone[place].any()) or count > 1
            last[row] = block, count
            spent[row, block] = spent.get((row, block), 0) + 1
        taken_back += int(gone.sum())
    assert taken_back > 5 and max(spent.values()) <= size
    assert not bool(step.after.masked.any())


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_leaving_out_shadows_that_cannot_matter_changes_no_answer(family: str, mutual: bool) -> None:
    every, needed = (
        contract.run(
            family,
            contract.first_state(family),
            replace(EAGER, shadows_see_each_other=mutual, shadows=which),  # type: ignore[arg-type]
            Sequential(8),
            CACHES.make("none"),
        )
        for which in ("all", "verified")
    )
    for name in ("row", "step", "kind", "slot", "token"):
        assert torch.equal(getattr(every, name), getattr(needed, name))
    assert bool((needed.kind == Kind.REVOKE).any())
    assert all(needed.rows_computed(row) < every.rows_computed(row) for row in range(3))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_different_blocks_decode_as_if_alone(family: str, cache: str, temperature: float) -> None:
    parts = EAGER, Sequential(8), CACHES.make(cache)
    contract.assert_batch_equals_alone(family, *parts, temperature=temperature)
    run = list(contract.steps(family, contract.first_state(family), *parts, temperature=temperature))
    assert any(step.move.revoke is not None and bool(step.move.revoke.any()) for step in run)
    relative = [step.window.first - step.before.prompt_length for step in run]
    assert any(len(set(blocks.tolist())) > 1 for blocks in relative), "some step has rows in different blocks"


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
def test_taking_back_needs_no_word_to_the_cache(family: str, cache: str) -> None:
    contract.assert_refreshed_cache_equals_none(family, EAGER, Sequential(8), CACHES.make(cache))


class Sums(Fake):
    """A model whose every row adds up what it sees: a random vector per (token, place) seen and place spoken about.

    The shifted one says at each row what the other one says at the right neighbour, if both see the same.
    """

    def __init__(self, shift: int, num_slots: int) -> None:
        super().__init__(shift=shift)
        size = self.facts.vocab_size
        table = torch.randn(size, num_slots + 1, num_slots + 1, size, generator=torch.Generator().manual_seed(1))
        self.table = 0.8 * table.double()

    def __call__(self, canvas: Canvas, work: ForwardPlan, cache: Any, store: Any) -> Tensor:
        size = canvas.tokens.shape[1]
        sees = work.visible[:, None] & torch.ones(size, size, dtype=torch.bool)
        if canvas.attends is not None:
            sees = sees & canvas.attends
        about = canvas.positions + self.facts.shift
        each = self.table[canvas.tokens[:, None], canvas.positions[:, None], about[..., None]]
        rows = torch.where(sees[..., None], each, 0.0).sum(2)
        speaking = work.rows.gather(1, work.speakers)
        logits = rows.gather(1, speaking[..., None].expand(-1, -1, rows.shape[-1]))
        return ban(logits, self.facts.banned_ids)


@pytest.mark.parametrize("shadows", ["verified", "all"])
@pytest.mark.parametrize("mutual", [True, False])
def test_a_shifted_model_that_says_the_same_gives_the_same_run(mutual: bool, shadows: Any) -> None:
    wino = Wino(0.5, 0.9, shadows_see_each_other=mutual, shadows=shadows)
    runs = []
    for shift in (0, 1):
        model = Sums(shift, num_slots=20)
        state = DenoisingState.start([[1, 2, 3], [4]], [14, 19], mask_id=MASK, shift=shift)
        runs.append(steps(model, wino, state=state, schedule=Sequential(7)))
    taken_back = 0
    for plain, shifted in zip(*runs, strict=True):
        assert torch.equal(plain.after.tokens, shifted.after.tokens)
        assert torch.equal(plain.move.commit, shifted.move.commit)
        if plain.canvas.extra:
            assert shifted.canvas.extra > plain.canvas.extra, "a speaker per question comes on top"
            assert plain.move.revoke is not None and shifted.move.revoke is not None
            assert torch.equal(plain.move.revoke, shifted.move.revoke)
            taken_back += int(plain.move.revoke.sum())
    assert taken_back > 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_verify_bound_of_0_is_a_strict_threshold_with_a_cap(family: str) -> None:
    """Worked out from every step's confidences: the best of what exceeds `draft`, no more than the cap."""
    wino, capped = Wino(0.3, 0.0, share=0.3, floor=2, ceiling=3), 0
    for step in contract.steps(family, contract.first_state(family), wino, Sequential(8), CACHES.make("none")):
        assert step.canvas.extra == 0 and step.move.revoke is None
        open_now, confidence = step.before.masked & step.window.open, step.prediction.confidence
        for place in range(step.before.num_rows):
            there = open_now[place].nonzero()[:, 0].tolist()
            order = sorted(there, key=lambda slot: -float(confidence[place, slot]))
            sure = [slot for slot in order if float(confidence[place, slot]) > 0.3]
            most = min(max(int(0.3 * len(there)), 2), 3)
            assert step.move.commit[place].nonzero()[:, 0].tolist() == sorted(sure[:most] or order[:1])
            capped += len(sure) > most
    assert capped, "the cap never mattered"
