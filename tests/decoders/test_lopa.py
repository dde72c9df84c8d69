"""LoPA worked out by hand, its candidates, and what is left of it without any."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from fakes import FunctionPredictor, ScriptedPredictor, steps, trace
from unmask.caches import CACHES, CachePolicy
from unmask.core.compose import check_composition
from unmask.core.denoise import Step
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Pipelined, Schedule, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.decoders import DECODERS
from unmask.decoders.lopa import Ahead, Lopa, best_of_each, candidates
from unmask.decoders.threshold import Threshold
from unmask.decoders.wino import Wino
from unmask.errors import CompositionError, RequestError

END = 8
CAUSAL = {"attention": "block_causal"}


def lopa(width: int = 2, **options: Any) -> Lopa:
    return Lopa(Threshold(0.9), width=width, **({"score": "confidence"} | options))


# Worked out by hand ---------------------------------------------------------------------------------------------------

SCRIPT = [
    {1: (1, 0.95), 2: (2, 0.8), 3: (3, 0.6), 4: (4, 0.5)},
    {2: (5, 0.8), 3: (6, 0.6), 4: (7, 0.5)},
    {4: (1, 0.5)},
]


def test_a_run_step_by_step() -> None:
    """Pass 1 commits slot 1 and proposes slots 2 and 3. Pass 2 weighs the canvas as it is, (.8 + .6 + .5) / 3 = .63,
    with slot 2 filled, (.6 + .5) / 2 = .55, and with slot 3 filled, (.8 + .5) / 2 = .65, which wins; the threshold adds
    slot 2 as the best of that canvas. Pass 3 tries slot 4: a full canvas has score 1."""
    run = steps(ScriptedPredictor(SCRIPT), lopa(), length=4)
    commits = [
        [(slot, int(step.after.tokens[0, slot])) for slot in step.move.commit[0].nonzero()[:, 0].tolist()]
        for step in run
    ]
    assert commits == [[(1, 1)], [(2, 5), (3, 3)], [(4, 7)]], "a token tried ahead is the one that was proposed"
    assert [step.move.branch.tolist() for step in run] == [[0], [2], [1]]  # type: ignore[union-attr]
    assert [step.rows_computed.tolist() for step in run] == [[5], [3 * 5], [2 * 5]]


def test_a_token_tried_ahead_is_recorded_with_the_confidence_it_was_proposed_with() -> None:
    start = DenoisingState.start([[0]], 4, mask_id=9)
    run = Trajectory.collect(start, steps(ScriptedPredictor(SCRIPT), lopa(), length=4))
    recorded = dict(zip(run.slot.tolist(), run.confidence.tolist(), strict=True))
    assert recorded == pytest.approx({1: 0.95, 2: 0.8, 3: 0.6, 4: 0.5})


def test_the_step_shows_the_canvas_that_won() -> None:
    _, second, _ = steps(ScriptedPredictor(SCRIPT), lopa(), length=4)
    assert second.before.tokens[0].tolist() == [0, 1, 9, 9, 9]
    assert second.canvas.tokens[0].tolist() == [0, 1, 9, 3, 9]
    assert second.prediction.known[0].nonzero()[:, 0].tolist() == [2, 4]


def test_only_the_least_sure_share_of_the_slots_is_weighed() -> None:
    """With a quarter, rounded down to one slot at least, pass 2 compares .5, .5 and .5: the first proposal wins."""
    run = steps(ScriptedPredictor(SCRIPT), lopa(share=0.25), length=4)
    assert run[1].move.branch.tolist() == [1]  # type: ignore[union-attr]
    assert run[1].move.commit[0].nonzero()[:, 0].tolist() == [2, 3]


def test_alpha_weighs_how_sure_the_proposal_was() -> None:
    """Pass 2 with .5: the plain canvas .5 * 1 + .5 * .63 = .82; slot 2 .5 * .8 + .5 * .55 = .675; slot 3 .625."""
    assert trace(ScriptedPredictor(SCRIPT), lopa(alpha=0.5), length=4)[1] == [(2, 5)]
    assert trace(ScriptedPredictor(SCRIPT), lopa(alpha=0.02), length=4)[1] == [(2, 5), (3, 3)]


@pytest.mark.parametrize(("score", "first"), [("confidence", 2), ("margin", 3), ("entropy", 2)])
def test_the_score_is_confidence_margin_or_entropy(score: str, first: int) -> None:
    """Slot 2: .55 and .45 (margin .1, entropy .69); slot 3: .5, the rest spread (margin .4, entropy 1.5)."""
    script = [{1: (1, 0.95), 2: [0.45, 0.0, 0.55, 0, 0, 0, 0], 3: [0.1, 0.1, 0.1, 0.5, 0.1, 0.1, 0], 4: (4, 0.3)}]
    predictor = ScriptedPredictor(script, vocab_size=7)
    run = steps(predictor, lopa(1, score=score), length=4)
    shown = predictor.seen[1][0].tokens
    assert (shown[1] != shown[0]).nonzero()[:, 0].tolist() == [first] and len(run) > 1


def test_equals_go_to_the_surest_proposal_and_to_the_plain_canvas_last() -> None:
    owner, number = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 2, 0, 1, 0])
    merit = torch.tensor([-1.0, -1.0, -1.0, 0.5, 0.4, -9.0])
    assert best_of_each(merit, owner, number, 2).tolist() == [1, 3, 5]
    assert best_of_each(torch.tensor([0.1, 0.2, 0.3, 0.5, 0.5, 1.0]), owner, number, 3).tolist() == [2, 4, 5]


# Candidates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watched(Lopa):
    """LoPA that checks its candidates while it runs."""

    def fork(self, state: DenoisingState, memory: Ahead) -> tuple[DenoisingState, Tensor]:
        shown, owner = Lopa.fork(self, state, memory)
        plain = state.take(owner)
        tried = shown.masked != plain.masked
        number = candidates(memory)[1]
        assert torch.equal(tried.sum(-1), (number > 0).long()), "one slot more, and none for the canvas as it is"
        assert torch.equal(shown.tokens[~tried], plain.tokens[~tried])
        assert not bool((tried & ~plain.masked).any()) and not bool((shown.tokens[tried] == state.mask_id).any())
        assert torch.equal(owner.bincount(), 1 + (memory.slots >= 0).sum(-1)) and bool((number <= self.width).all())
        return shown, owner

    def merit(self, state: Any, window: Any, prediction: Any, proposed: Tensor) -> Tensor:
        merit = Lopa.merit(self, state, window, prediction, proposed)
        MERITS.append(merit)
        return merit

    def decide(self, state: Any, window: Any, prediction: Any, memory: Ahead) -> Any:
        OWNERS.append(candidates(memory)[0])
        return Lopa.decide(self, state, window, prediction, memory)


MERITS: list[Tensor] = []
OWNERS: list[Tensor] = []


@pytest.mark.parametrize("schedule", ["whole", "sequential(block_length=5)", "pipelined(block_length=4, add=0.5)"])
def test_candidates_differ_in_one_slot_and_the_winner_is_no_worse_than_the_plain_canvas(schedule: str) -> None:
    decoder, tried, kept = Watched(Threshold(0.8), width=3, alpha=0.1), 0, 0
    MERITS.clear(), OWNERS.clear()
    parts = decoder, SCHEDULES.make(schedule), CACHES.make("none")
    for number, step in enumerate(contract.steps("dream", contract.first_state("dream", infill=True), *parts)):
        merit, owner, branch = MERITS[number], OWNERS[number], step.move.branch
        assert branch is not None
        tried += int((branch > 0).sum())
        for row, won in enumerate(branch.tolist()):
            mine = merit[owner == row].tolist()  # the plain canvas comes first, and competes
            assert mine[won] == max(mine)
            kept += won == 0 and len(mine) > 1
    assert tried > 1 and kept > 0, "some proposals have to win, and some to lose"


def test_a_candidate_that_fills_a_block_goes_on_in_the_next_one() -> None:
    """Blocks of two. Slot 2 is tried at pass 2 and fills the first block, so that canvas is asked about slots 3 and 4,
    and the threshold commits slot 3; nothing is lost when the loop records it."""
    script = [{1: (1, 0.6), 2: (2, 0.5), 3: (3, 0.95), 4: (4, 0.6)}]
    run = steps(ScriptedPredictor(script), lopa(1), length=4, schedule=Sequential(2))
    assert [step.move.commit[0].nonzero()[:, 0].tolist() for step in run] == [[1], [2, 3], [4]]
    assert run[1].window.open[0].nonzero()[:, 0].tolist() == [3, 4] and run[1].window.age.tolist() == [0]


def test_an_end_token_that_is_held_back_is_not_tried_ahead() -> None:
    script = [{1: (1, 0.5), 2: (2, 0.4), 3: (3, 0.3), 4: (END, 0.8)}]
    held, free = (
        trace(ScriptedPredictor(script, end_ids=(END,)), lopa(1), length=4, stop=Stopping("none", hold_end=hold))
        for hold in (True, False)
    )
    assert [slot for step in held for slot, _ in step][-1] == 4 and free[0] == [(4, END)]


def test_all_candidates_draw_with_the_noise_of_their_row() -> None:
    """A model that looks at nothing: at a temperature every candidate gets the same tokens."""
    fixed = torch.randn(6, 10, generator=torch.Generator().manual_seed(3)).double()
    predictor = FunctionPredictor(lambda tokens: fixed.expand(len(tokens), -1, -1))
    state = DenoisingState.start([[0], [0]], 5, mask_id=9, seeds=[4, 4])
    sampling = Sampling(temperature=2.0, precision=torch.float64)
    run = steps(predictor, lopa(2), state=state, sampling=sampling)
    assert all(torch.equal(step.after.tokens[0], step.after.tokens[1]) for step in run)
    assert len({tuple(step.prediction.tokens[0].tolist()) for step in run}) > 1


# Together with the others ---------------------------------------------------------------------------------------------


INNER = DECODERS.make("threshold(threshold=0.8, strict=True)")
PAIRS = [
    (schedule, policy)
    for schedule in (Sequential(8), Pipelined(4, add=0.5, force=0.75))
    for policy in map(CACHES.make, contract.CACHE_SPECS)
    if contract.composes(INNER, schedule, policy)
]


@pytest.mark.parametrize(("schedule", "policy"), PAIRS, ids=lambda part: type(part).__name__)
def test_without_candidates_it_is_the_inner_method(schedule: Schedule, policy: CachePolicy) -> None:
    state = contract.first_state("dream")
    plain, wrapped = (
        contract.run("dream", state, decoder, schedule, policy, temperature=0.4, **CAUSAL)
        for decoder in (INNER, Lopa(INNER, width=0))
    )
    for name in ("row", "step", "slot", "token", "passes"):
        assert torch.equal(getattr(plain, name), getattr(wrapped, name))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("spec", ["finished-blocks", "prefix", "none"])
def test_on_a_block_causal_model_caches_change_no_step(family: str, spec: str) -> None:
    """The winner's keys and values go on; those of the others are forgotten."""
    schedule = Sequential(4) if spec == "prefix" else Pipelined(4, add=0.5, force=0.75)
    decoder = Lopa(Threshold(0.7), width=2)
    full, cached = (
        contract.run(family, contract.first_state(family), decoder, schedule, CACHES.make(name), **CAUSAL)
        for name in ("none", spec)
    )
    for name in ("row", "step", "slot", "token"):
        assert torch.equal(getattr(full, name), getattr(cached, name))
    saves = sum(cached.rows_computed(row) for row in range(3)) < sum(full.rows_computed(row) for row in range(3))
    assert saves == (spec != "none")


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    ("spec", "cache"),
    [("lopa(threshold(threshold=0.8), width=2)", "dual"), ("lopa(low-confidence(steps=7), width=3)", "none")],
)
def test_rows_decode_as_if_alone(family: str, spec: str, cache: str) -> None:
    parts = DECODERS.make(spec), Sequential(8), CACHES.make(cache)
    contract.assert_batch_equals_alone(family, *parts, temperature=0.7)


def test_it_needs_fewer_steps_than_the_inner_method_alone() -> None:
    runs = [
        contract.run("llada", contract.first_state("llada"), decoder, Sequential(8), CACHES.make("none"))
        for decoder in (Threshold(0.9), Lopa(Threshold(0.9), width=3))
    ]
    alone, ahead = ([run.nfe(row) for row in range(3)] for run in runs)
    assert sum(ahead) < sum(alone)


def test_methods_of_methods_go_inside() -> None:
    """Prophet closes the winner; nothing is left to try ahead."""
    decoder = DECODERS.make("lopa(prophet(either(threshold, local-leap), early=-1e999), width=2)")
    check_composition(decoder, Sequential(), CACHES.make("none"))
    assert len(steps(ScriptedPredictor(SCRIPT), decoder, length=4)) == 1


@pytest.mark.parametrize(
    ("decoder", "cache", "reason"),
    [
        (Lopa(Wino()), "none", r"Lopa cannot hold Wino: that takes tokens back.*such as \"threshold\""),
        (Lopa(Lopa(Threshold())), "none", "Lopa cannot hold Lopa"),
        (Lopa(Threshold()), "features", "Lopa cannot run with Features: its candidate canvases come and go"),
    ],
)
def test_what_does_not_go_with_candidates_is_refused(decoder: Lopa, cache: str, reason: str) -> None:
    with pytest.raises(CompositionError, match=reason):
        check_composition(decoder, Sequential(), CACHES.make(cache))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("width=-1", "width must be a number of canvases"),
        ("share=1.5", "share must be from 0 to 1"),
        ("alpha=-0.1", "alpha must be from 0 to 1"),
        ("score='gap'", "wants Literal"),
    ],
)
def test_senseless_fields_are_refused(field: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DECODERS.make(f"lopa(threshold, {field})")


def test_a_step_belongs_to_the_rows_that_are_left() -> None:
    """Rows of two and five slots: the first one leaves the batch, and the other's winner is found all the same."""
    run: list[Step] = steps(
        ScriptedPredictor([{slot: (slot, 0.2 + slot / 20) for slot in range(1, 6)}]),
        lopa(2, share=0.1),
        state=DenoisingState.start([[0], [0]], [2, 5], mask_id=9),
    )
    assert [step.row_ids.tolist() for step in run] == [[0, 1], [0, 1], [1]]
    assert all(step.rows_computed.shape == step.row_ids.shape for step in run)
    assert run[-1].after.done.all()
