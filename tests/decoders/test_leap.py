"""LEAP: the layout by hand, a run by hand, and what has to hold on real networks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_wino import Sums
from torch import Tensor

import contract
from fakes import Entry, ScriptedPredictor, steps, trace
from unmask.caches import CACHES
from unmask.core.canvas import Canvas, plain_view, plan
from unmask.core.compose import check_composition
from unmask.core.denoise import Step
from unmask.core.extras import beside
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Sequential, Whole
from unmask.core.state import DenoisingState, Move
from unmask.decoders import DECODERS
from unmask.decoders.base import Decoder
from unmask.decoders.compound import decision_of
from unmask.decoders.leap import Leap, superpose
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.decoders.wino import shadowed
from unmask.errors import CompositionError, RequestError
from unmask.models.guidance import Guided
from unmask.registry import spec_of

MASK, FAMILIES = 9, ("llada", "dream")
EAGER = Leap(accept=0.9, early=0.3, candidate=0.05)  # looks at a lot and commits a lot on random networks


# The layout ----------------------------------------------------------------------------------------------------------

A, B = 3, 4  # two candidates
ANSWER = ["o0", "o1", "o2", "o3", "o4"]
BLIND = dict.fromkeys(ANSWER, "o0 o1 o2 o3 o4")  # answer slots see no extra one


def first_committed(shift: int) -> DenoisingState:
    """Two given slots, a block of three, its first slot committed: o0 o1 o2, and masks at o3 o4."""
    state = DenoisingState.start([[5, 6]], 3, mask_id=MASK, shift=shift)
    commit = (state.slots == 2) & state.masked
    return state.apply(Move(commit, torch.full_like(state.tokens, 7)))


def laid_out(shift: int, candidates: dict[int, list[int]], about: Sequence[int], **options: bool) -> Canvas:
    state = first_committed(shift)
    tokens, kept = torch.zeros(1, 5, 2, dtype=torch.long), torch.zeros(1, 5, 2, dtype=torch.bool)
    for slot, ids in candidates.items():
        tokens[0, slot, : len(ids)], kept[0, slot, : len(ids)] = torch.tensor(ids), True
    return superpose(state, state.masked, tokens, kept, torch.isin(state.slots, torch.tensor(about)), **options)


def seen(canvas: Canvas, names: Sequence[str]) -> dict[str, str]:
    """For every slot of a one-row canvas, the names of the slots it sees."""
    assert canvas.attends is not None
    return {
        name: " ".join(key for key, sees in zip(names, row, strict=True) if sees)
        for name, row in zip(names, canvas.attends[0].tolist(), strict=True)
    }


def test_a_replica_sees_the_candidates_of_a_slot_in_place_of_its_mask() -> None:
    canvas = laid_out(0, {3: [A, B]}, about=[4])
    assert canvas.tokens.tolist() == [[5, 6, 7, MASK, MASK, A, B, MASK]]
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 3, 3, 4]]
    assert canvas.targets is not None and canvas.targets.tolist() == [[-1, -1, 4]]
    assert seen(canvas, [*ANSWER, "c3a", "c3b", "r4"]) == BLIND | {
        "c3a": "o0 o1 o2 o4 c3a",
        "c3b": "o0 o1 o2 o4 c3b",
        "r4": "o0 o1 o2 c3a c3b r4",
    }


def test_the_replica_of_a_shifted_model_stands_in_for_the_left_neighbour() -> None:
    """It shows the neighbour's mask, and sees the mask of the slot it is asked about, as the plain row does."""
    canvas = laid_out(1, {3: [A, B]}, about=[4])
    assert canvas.tokens.tolist() == [[5, 6, 7, MASK, MASK, A, B, MASK]]
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 3, 3, 3]]
    assert canvas.targets is not None and canvas.targets.tolist() == [[-1, -1, 4]]
    assert seen(canvas, [*ANSWER, "c3a", "c3b", "r4"]) == BLIND | {
        "c3a": "o0 o1 o2 o4 c3a",
        "c3b": "o0 o1 o2 o4 c3b",
        "r4": "o0 o1 o2 o4 c3a c3b r4",
    }


def test_the_replica_of_a_shifted_model_repeats_a_neighbour_that_is_decided() -> None:
    canvas = laid_out(1, {3: [A], 4: [B]}, about=[3, 4])
    assert canvas.tokens.tolist() == [[5, 6, 7, MASK, MASK, A, B, 7, MASK]]
    assert canvas.positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 2, 3]]
    assert seen(canvas, [*ANSWER, "c3a", "c4b", "r3", "r4"]) == BLIND | {
        "c3a": "o0 o1 o2 o4 c3a",
        "c4b": "o0 o1 o2 o3 c4b",
        "r3": "o0 o1 o3 c4b r3",
        "r4": "o0 o1 o2 o4 c3a r4",
    }


@pytest.mark.parametrize(("shift", "sees"), [(0, "o0 o1 o2 o4 r3"), (1, "o0 o1 o3 o4 r3")])
def test_without_candidates_a_replica_sees_what_the_plain_row_sees(shift: int, sees: str) -> None:
    canvas = laid_out(shift, {}, about=[3])
    assert canvas.extra_exists is not None and canvas.extra_exists.tolist() == [[False, True]]
    assert seen(canvas, [*ANSWER, "none", "r3"])["r3"] == sees


def test_mutual_candidates_see_each_other_and_isolated_ones_do_not() -> None:
    names, candidates = [*ANSWER, "c3a", "c3b", "c4b", "r3", "r4"], {3: [A, B], 4: [B]}
    apart, mutual = (seen(laid_out(0, candidates, [3, 4], mutual=flag), names) for flag in (False, True))
    assert [apart[name] for name in names[5:8]] == ["o0 o1 o2 o4 c3a", "o0 o1 o2 o4 c3b", "o0 o1 o2 o3 c4b"]
    assert [mutual[name] for name in names[5:8]] == ["o0 o1 o2 c3a c4b", "o0 o1 o2 c3b c4b", "o0 o1 o2 c3a c3b c4b"]
    for layout in (apart, mutual):
        assert [layout[name] for name in names[8:]] == ["o0 o1 o2 c4b r3", "o0 o1 o2 c3a c3b r4"]


@pytest.mark.parametrize(("shift", "sees"), [(0, "o0 o1 o2 o3 c3a r4"), (1, "o0 o1 o2 o4 c3a r4")])
def test_masks_may_stay_beside_their_candidates(shift: int, sees: str) -> None:
    """In the shifted case the mask of slot 3 is the replica itself."""
    assert seen(laid_out(shift, {3: [A]}, [4], see_masks=True), [*ANSWER, "c3a", "r4"])["r4"] == sees


# A run by hand -------------------------------------------------------------------------------------------------------

# Slots 1 to 5. Every slot but the committed ones leaves one candidate, so at the second step slots 6 to 9 are the
# candidates of slots 2 to 5 and slots 10 to 13 their replicas; at the third, slots 6 and 7 and slots 8 and 9.
SCRIPT: list[Entry] = [
    {1: (1, 0.95), 2: (2, 0.8), 3: (3, 0.8), 4: (4, 0.5), 5: (5, 0.5)},
    {2: (2, 0.75), 3: (3, 0.8), 4: (4, 0.6), 5: (5, 0.95), 10: (2, 0.3), 11: (6, 0.9), 12: (4, 0.9), 13: (1, 0.9)},
    {3: (3, 0.8), 4: (4, 0.8), 8: (3, 0.5), 9: (4, 0.5)},
]
FIRST = [(1, 1)]


def committed_by(decoder: Decoder, script: list[Entry] = SCRIPT, **options: Any) -> list[list[tuple[int, int]]]:
    return trace(ScriptedPredictor(script, shift=options.pop("shift", 0)), decoder, length=5, **options)


@pytest.mark.parametrize("shift", [0, 1])
def test_an_agreeing_slot_is_committed_early_and_a_disagreeing_one_is_not(shift: int) -> None:
    """Second step: slot 5 by the base rule, although its replica disagrees; slot 2 early; slot 3 disagrees; slot 4
    agrees, but is not sure enough. Third step: slot 3 and slot 4 agree."""
    assert committed_by(Leap(), shift=shift) == [FIRST, [(2, 2), (5, 5)], [(3, 3), (4, 4)]]
    base = [FIRST, [(5, 5)], [(3, 3)], [(4, 4)], [(2, 0)]]
    assert committed_by(Threshold(0.9), shift=shift) == base


def test_the_candidates_are_the_likely_tokens_of_the_step_before() -> None:
    predictor = ScriptedPredictor(SCRIPT)
    run = steps(predictor, Leap(), length=5)
    assert [step.canvas.extra for step in run] == [0, 8, 4], "no step before the first one, so no candidates"
    assert run[1].canvas.tokens[0, 6:].tolist() == [2, 3, 4, 5, MASK, MASK, MASK, MASK]
    assert run[1].canvas.positions[0, 6:].tolist() == [2, 3, 4, 5, 2, 3, 4, 5]
    assert run[2].canvas.tokens[0, 6:].tolist() == [3, 4, MASK, MASK]


def test_all_tokens_above_the_bound_are_candidates_likeliest_first() -> None:
    odds = [0.0, 0.3, 0.1, 0.35, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0]
    script: list[Entry] = [{1: (1, 0.95), 2: odds, 3: (1, 0.15)}]
    extras = [
        steps(ScriptedPredictor(script), decoder, length=3)[1].canvas.tokens[0, 4:].tolist()
        for decoder in (Leap(), Leap(max_candidates=2), Leap(candidate=0.3), Leap(candidate=0.28))
    ]
    assert extras == [[3, 1, 4, MASK], [3, 1, MASK], [3, MASK], [3, 1, MASK]], "only slot 3 is reached by another's"


def test_bounds_that_are_met_exactly() -> None:
    """`early` and `candidate` themselves fail, `accept` itself passes; 0.5 is exact in a vocabulary of four."""
    script: list[Entry] = [
        {1: (0, 0.9), 2: (1, 0.5), 3: (2, 0.5)},
        {2: (1, 0.5), 3: (2, 0.5), 6: (1, 0.5), 7: (2, 0.5)},
    ]

    def sizes(decoder: Leap) -> list[int]:
        return [len(step) for step in trace(ScriptedPredictor(script, vocab_size=4), decoder, length=3)]

    assert sizes(Leap(early=0.499, candidate=0.3)) == [1, 2]
    assert sizes(Leap(early=0.5, candidate=0.3)) == [1, 1, 1]
    assert sizes(Leap(early=0.4, candidate=0.499)) == [1, 2]
    assert sizes(Leap(early=0.4, candidate=0.5)) == [1, 1, 1]
    assert sizes(Leap(accept=0.5)) == [3]


def test_only_the_open_block_has_candidates_and_none_is_left_over_for_the_next() -> None:
    """Slot 3 is sure of itself all the time, but belongs to the second block, which opens with nothing to look at."""
    script: list[Entry] = [{1: (1, 0.8), 2: (2, 0.75), 3: (3, 0.8), 4: (4, 0.7)}]
    run = steps(ScriptedPredictor(script), Leap(), length=4, schedule=Sequential(2))
    assert [step.canvas.extra for step in run] == [0, 0, 0, 0], "after a forced commit a block of two has one slot left"
    looking = steps(ScriptedPredictor(script), Leap(ahead=True), length=4, schedule=Sequential(2))
    assert [step.canvas.positions[0, 5:].tolist() for step in looking] == [[], [], [3, 4, 3, 4], []]
    wide = steps(ScriptedPredictor(script), Leap(ahead=True), length=4, schedule=Sequential(3))
    assert not wide[0].prediction.known[0, 0] and wide[0].prediction.known[0, 4]


def test_a_temperature_leaves_the_base_rule_alone() -> None:
    sampling = Sampling(temperature=0.8, precision=torch.float64)
    run, base = (steps(ScriptedPredictor(SCRIPT), one, length=5, sampling=sampling) for one in (Leap(), Threshold(0.9)))
    assert [step.move.commit.tolist() for step in run] == [step.move.commit.tolist() for step in base]
    assert all(step.canvas.extra == 0 for step in run)
    trusting = replace(Leap(), require_perturbation=False)
    run = steps(ScriptedPredictor(SCRIPT), trusting, length=5, sampling=sampling)
    assert [step.move.commit.tolist() for step in run] == [step.move.commit.tolist() for step in base]


# The choices ---------------------------------------------------------------------------------------------------------


def test_the_base_rule_may_have_to_agree_too() -> None:
    """Slot 5 is sure, but its replica disagrees. Where nothing else is left, the rule's best commit stands."""
    assert committed_by(Leap(agree_all=True))[1] == [(2, 2)]
    lonely = [SCRIPT[0], SCRIPT[1] | {10: (7, 0.9)}]
    assert committed_by(Leap(agree_all=True), lonely)[1] == [(5, 5)]
    assert committed_by(Leap(), lonely)[1] == [(5, 5)]


def test_the_lower_of_both_confidences_may_count() -> None:
    assert committed_by(Leap(confidence="lowest"))[1] == [(5, 5)], "the replica of slot 2 has 0.3 only"
    surer = [SCRIPT[0], SCRIPT[1] | {10: (2, 0.72)}]
    assert committed_by(Leap(confidence="lowest"), surer)[1] == [(2, 2), (5, 5)]


def test_only_slots_with_candidates_may_be_asked_again() -> None:
    """Slot 2 has no candidate of its own: its confidence was 0.15."""
    script: list[Entry] = [{1: (1, 0.95), 2: (2, 0.15), 3: (3, 0.8)}, {2: (2, 0.8), 3: (3, 0.92), 5: (2, 0.8)}]
    runs = [trace(ScriptedPredictor(script), one, length=3) for one in (Leap(), Leap(replicas="candidates"))]
    assert runs == [[FIRST, [(2, 2), (3, 3)]], [FIRST, [(3, 3)], [(2, 2)]]]


def test_a_slot_that_no_candidate_reaches_may_be_taken_on_trust() -> None:
    """At the first step there are no candidates: slots 2 and 3 exceed 0.7 and would be vacuously confirmed."""
    assert committed_by(Leap(require_perturbation=False))[0] == [(1, 1), (2, 2), (3, 3)]
    assert committed_by(Leap())[0] == FIRST
    doubted = [SCRIPT[0] | {2: (2, 0.6), 3: (3, 0.6)}, SCRIPT[1]]
    second = committed_by(Leap(require_perturbation=False), doubted)[1]
    assert second == [(2, 2), (5, 5)], "slot 3 is reached, asked again, and disagrees"


def test_extra_slots_can_be_capped_and_the_likeliest_stay() -> None:
    """Three candidates and three replicas fit into 6: those of slots 2, 3 and then the lowest of the others."""
    step = steps(ScriptedPredictor(SCRIPT), Leap(max_extra=6), length=5)[1]
    assert step.canvas.positions[0, 6:].tolist() == [2, 3, 4, 2, 3, 4]
    roomy = steps(ScriptedPredictor(SCRIPT), Leap(max_extra=7), length=5)[1]
    assert roomy.canvas.positions[0, 6:].tolist() == [2, 3, 4, 2, 3, 4, 5]
    assert steps(ScriptedPredictor(SCRIPT), Leap(max_extra=8), length=5)[1].canvas.extra == 8


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("leap(candidate=0)", "candidate must be at least 0.01, or too many tokens are: got 0.0"),
        ("leap(max_candidates=0)", "max_candidates must be at least 1, or None for all: got 0"),
        ("leap(max_extra=1)", "max_extra must be at least 2, or None for any number: got 1"),
        ("leap(mode='shared')", "mode"),
    ],
)
def test_senseless_fields_are_refused(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DECODERS.make(spec)
    with pytest.raises(ValueError, match="early must be a number: got nan"):
        Leap(early=float("nan"))


# Other base rules ----------------------------------------------------------------------------------------------------


def test_a_spec_may_hold_another_base_rule() -> None:
    decoder = DECODERS.make("leap(factor(factor=2.0), early=0.6)")
    assert spec_of(DECODERS, decoder) == "leap(early=0.6, inner=factor(factor=2.0))"
    assert decoder == DECODERS.make(spec_of(DECODERS, decoder))
    assert not decoder.spreads and DECODERS.make("leap(low-confidence(steps=4))").spreads
    assert DECODERS.make("leap(dc-leap)").schedule is SCHEDULES["sliding"]


@pytest.mark.parametrize("inner", ["wino", "leap", "either(wino, threshold)"])
def test_a_base_rule_that_reshapes_or_revokes_is_refused(inner: str) -> None:
    with pytest.raises(
        CompositionError, match=r"Leap cannot hold (Wino|Leap|Either): it (takes tokens back|adds slots)"
    ):
        check_composition(DECODERS.make(f"leap({inner})"), Whole(), CACHES.make("none"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "inner", ["entropy(steps=9)", "dc-leap(commit=0.8, draft=0.3)", "klass", "local-leap(anchor=0.99)"]
)
def test_early_commits_join_those_of_any_base_rule(inner: str, family: str) -> None:
    """The rule decides as if there were no extra slots, and its commits all stand."""
    rule = DECODERS.make(inner)
    decoder, more = Leap(early=0.2, candidate=0.05, inner=rule), 0
    for row in range(3):
        state = contract.first_state(family, (row,))
        memory = rule.begin(state)
        for step in contract.steps(family, state, decoder, contract.schedule_of(decoder), CACHES.make("none")):
            plain = step.prediction.without_extras()
            assert plain.num_slots == state.num_slots and plain.targets is None
            move, memory = decision_of(rule, step.before, step.window, plain, memory)
            assert not (move.commit & ~step.move.commit).any()
            assert torch.equal(step.after.tokens[move.commit], move.tokens[move.commit])
            more += int((step.move.commit & ~move.commit).sum())
    assert more


# Networks ------------------------------------------------------------------------------------------------------------


def halfway(family: str) -> DenoisingState:
    """Three ragged rows in the middle of a run."""
    run = contract.steps(family, contract.first_state(family), LowConfidence(), Whole(), CACHES.make("none"))
    return [next(run) for _ in range(3)][-1].after


def options_of(state: DenoisingState, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random candidates for half of the masked slots, up to three each."""
    generator = torch.Generator().manual_seed(seed)
    size = (*state.tokens.shape, 3)
    tokens = torch.randint(40, size, generator=generator)
    return tokens, (torch.rand(size, generator=generator) < 0.3) & state.masked[..., None]


def said(
    family: str, state: DenoisingState, canvas: Canvas, asks: Tensor, guidance: float = 0.0
) -> tuple[Tensor, Tensor]:
    """What answer slots say about themselves and extra slots about their targets, (b, l, v); 0 where nobody speaks."""
    predictor: Any = contract.model(family).predictor
    predictor = Guided(predictor, guidance) if guidance else predictor
    none = CACHES.make("none")
    if canvas.targets is not None:
        asks = torch.cat((asks, canvas.targets >= 0), dim=1)
    work = plan(canvas, Whole().window(state, None), asks, None, state.shift)
    logits = predictor(canvas, work, none, predictor.open_store(state, none))
    logits = logits.masked_fill(logits.isneginf(), 0.0)
    plain, again = (torch.zeros(*state.tokens.shape, logits.shape[-1], dtype=logits.dtype) for _ in range(2))
    for row in range(state.num_rows):
        for place, slot in enumerate(work.asked[row, : int(work.num_asked[row])].tolist()):
            if slot < state.num_slots:
                plain[row, slot] = logits[row, place]
            else:
                assert canvas.targets is not None
                again[row, int(canvas.targets[row, slot - state.num_slots])] = logits[row, place]
    return plain, again


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_extra_slots_change_nothing_that_is_said_about_the_answer(family: str, mutual: bool) -> None:
    state = halfway(family)
    canvas = superpose(state, state.masked, *options_of(state), state.masked, mutual=mutual)
    without, _ = said(family, state, plain_view(state), state.masked)
    answers, again = said(family, state, canvas, state.masked)
    assert close(answers, without) and without.any()
    assert not close(again, without), "the candidates do change what the replicas say"


@pytest.mark.parametrize("family", FAMILIES)
def test_shadows_and_replicas_beside_each_other_say_what_they_say_alone(family: str) -> None:
    state = halfway(family)
    decided = state.answer & ~state.masked
    verified = shadowed(state, decided, decided, mutual=True)
    asked_again = superpose(state, state.masked, *options_of(state), state.masked)
    for canvas in (beside(verified, asked_again), beside(asked_again, verified)):
        assert canvas.extra == verified.extra + asked_again.extra
        plain, again = said(family, state, canvas, state.masked)
        for alone, about in ((verified, decided), (asked_again, state.masked)):
            same, own = said(family, state, alone, state.masked)
            assert close(plain, same)
            assert close(again[about], own[about]) and own[about].any()


@pytest.mark.parametrize("guidance", [0.0, 1.5])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_candidates_a_replica_says_what_its_slot_says(family: str, guidance: float) -> None:
    state = halfway(family)
    tokens, kept = options_of(state)
    canvas = superpose(state, state.masked, tokens, torch.zeros_like(kept), state.masked)
    plain, again = said(family, state, canvas, state.masked, guidance)
    assert close(again, plain) and plain.any()


def test_a_replica_of_the_very_first_slot_of_a_shifted_model_says_what_its_slot_says() -> None:
    facts = contract.model("dream").facts
    state = DenoisingState.from_canvas([[None, 4, None, 5]], mask_id=facts.mask_id, shift=1)
    nothing = torch.zeros(1, 4, 2, dtype=torch.long)
    plain, again = said(
        "dream", state, superpose(state, state.masked, nothing, nothing > 0, state.masked), state.masked
    )
    assert close(again, plain) and plain[0, 0].any() and plain[0, 2].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_extra_slots_does_not_matter(family: str) -> None:
    state = halfway(family)
    canvas = superpose(state, state.masked, *options_of(state), state.masked)
    assert canvas.attends is not None and canvas.targets is not None and canvas.extra_exists is not None
    order = torch.randperm(canvas.extra, generator=torch.Generator().manual_seed(1))
    wide = torch.cat((torch.arange(state.num_slots), state.num_slots + order))
    shuffled = Canvas(
        canvas.tokens[:, wide],
        canvas.positions[:, wide],
        canvas.attends[:, wide][:, :, wide],
        canvas.extra,
        canvas.targets[:, order],
        canvas.extra_exists[:, order],
    )
    for one, other in zip(*(said(family, state, c, state.masked) for c in (canvas, shuffled)), strict=True):
        assert close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_replica_says_depends_on_candidates_of_other_slots_only(family: str) -> None:
    """Other, more or no candidates of a slot: its own replica says the same if candidates are isolated, and the other
    replicas do not. Mutual candidates carry the change back to it."""
    state = halfway(family)
    tokens, kept = options_of(state)
    slot = int(kept[0].any(-1).nonzero()[0, 0])
    here = torch.zeros_like(kept)
    here[0, slot] = True
    changes = [(torch.where(here, tokens + 1, tokens), kept), (tokens, kept | here), (tokens, kept & ~here)]
    for mutual in (False, True):
        _, before = said(
            family, state, superpose(state, state.masked, tokens, kept, state.masked, mutual=mutual), here[..., 0]
        )
        for other, still in changes:
            if torch.equal(still, kept) and torch.equal(other, tokens):
                continue
            canvas = superpose(state, state.masked, other, still, state.masked, mutual=mutual)
            _, after = said(family, state, canvas, here[..., 0])
            assert close(before[0, slot], after[0, slot]) is not mutual
            others = state.masked[0] & (state.slots[0] != slot)
            assert not close(before[0, others], after[0, others])
            assert close(before[1:], after[1:]), "other rows know nothing of it"


@pytest.mark.parametrize("cache", ["none", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("leap", [Leap(0.6, 0.2, candidate=1.0), Leap(0.6, 0.6, candidate=0.05)], ids=["eta", "tau"])
def test_without_candidates_or_room_between_the_bounds_leap_is_its_base_rule(
    leap: Leap, family: str, cache: str
) -> None:
    parts = Sequential(8), CACHES.make(cache)
    runs = [list(contract.steps(family, contract.first_state(family), one, *parts)) for one in (leap, Threshold(0.6))]
    assert [step.move.commit.tolist() for step in runs[0]] == [step.move.commit.tolist() for step in runs[1]]
    assert [step.after.tokens.tolist() for step in runs[0]] == [step.after.tokens.tolist() for step in runs[1]]
    assert any(step.canvas.extra for step in runs[0]) is (leap.candidate < 1.0)


@pytest.mark.parametrize("cache", ["none", "dual", "prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_commits_what_threshold_would_and_some_commit_more(family: str, cache: str) -> None:
    more, base = 0, Threshold(EAGER.accept)
    for step in contract.steps(family, contract.first_state(family), EAGER, Sequential(8), CACHES.make(cache)):
        plain = step.prediction.without_extras()
        wanted = base.decide(step.before, step.window, plain, None).commit
        assert not (wanted & ~step.move.commit).any()
        more += int((step.move.commit & ~wanted).sum())
        assert (step.window.age < 8).all(), "a block of 8 takes at most 8 steps"
    assert more


def candidates_of(step: Step, row: int) -> list[tuple[int, int]]:
    """(slot, token) of every candidate that the step showed in this row."""
    canvas, place = step.canvas, step.row_ids.tolist().index(row)
    if canvas.targets is None or canvas.extra_exists is None:
        return []
    keys = ((canvas.targets[place] < 0) & canvas.extra_exists[place]).nonzero()[:, 0] + canvas.num_answer_slots
    return sorted(zip(canvas.positions[place, keys].tolist(), canvas.tokens[place, keys].tolist(), strict=True))


@pytest.mark.parametrize("schedule", ["sequential(block_length=8)", "sliding(length=6)", "whole"])
@pytest.mark.parametrize("family", FAMILIES)
def test_candidates_are_fresh_and_of_slots_that_are_still_masked_and_open(family: str, schedule: str) -> None:
    """Worked out from the logits of the step before, row by row; rows that are not asked again hold none."""
    before: dict[int, list[tuple[int, int]]] = {}
    shown = 0
    run = contract.steps(family, contract.first_state(family), EAGER, SCHEDULES.make(schedule), CACHES.make("none"))
    for step in run:
        likely: dict[int, list[tuple[int, int]]] = {}
        for place, row in enumerate(step.row_ids.tolist()):
            open_now = (step.before.masked & step.window.open)[place]
            wanted = [one for one in before.get(row, []) if open_now[one[0]]]
            holders = {slot for slot, _ in wanted}
            reached = [slot for slot in open_now.nonzero()[:, 0].tolist() if holders - {slot}]
            assert candidates_of(step, row) == (sorted(wanted) if reached else [])
            shown += len(wanted)
            work, probability = step.prediction.work, step.prediction.logits[place].double().softmax(-1)
            likely[row] = [
                (slot, token)
                for rank, slot in enumerate(work.asked[place, : int(work.num_asked[place])].tolist())
                if slot < step.before.num_slots and not step.move.commit[place, slot]
                for token in (probability[rank] > EAGER.candidate).nonzero()[:, 0].tolist()
            ]
        before = likely
    assert shown > 20


@pytest.mark.parametrize("cache", ["delayed(every=4)", "window(refresh=6)", "prefix"])
def test_extra_slots_are_computed_whatever_the_cache_freezes(cache: str) -> None:
    run = list(contract.steps("llada", contract.first_state("llada"), EAGER, Sequential(8), CACHES.make(cache)))
    saved = 0
    for step in run:
        work, size = step.prediction.work, step.before.num_slots
        for place in range(step.before.num_rows):
            there = 0 if step.canvas.extra_exists is None else int(step.canvas.extra_exists[place].sum())
            rows = work.rows[place, : int(work.num_rows[place])]
            assert int((rows >= size).sum()) == there
            saved += int(step.before.exists[place].sum()) - int((rows < size).sum())
    assert any(step.canvas.extra for step in run) and saved, "and the cache saves something all the same"


@pytest.mark.parametrize("mode", ["isolated", "mutual"])
def test_a_shifted_model_that_says_the_same_confirms_the_same_slots(mode: Any) -> None:
    """A replica of a shifted model is the mask left of its slot, where that is masked; so the masks have to stay beside
    their candidates in the plain model, too, or it would be told less."""
    leap, runs = Leap(0.95, 0.2, 0.1, mode=mode, see_masks=True), []
    for shift in (0, 1):
        state = DenoisingState.start([[1, 2, 3], [4]], [14, 19], mask_id=MASK, shift=shift)
        runs.append(steps(Sums(shift, num_slots=20), leap, state=state, schedule=Sequential(7)))
    early = 0
    for plain, shifted in zip(*runs, strict=True):
        assert torch.equal(plain.after.tokens, shifted.after.tokens)
        assert torch.equal(plain.move.commit, shifted.move.commit)
        wanted = Threshold(0.95).decide(plain.before, plain.window, plain.prediction.without_extras(), None).commit
        early += int((plain.move.commit & ~wanted).sum())
    assert early > 2
