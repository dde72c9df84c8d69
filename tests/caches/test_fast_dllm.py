"""Fast-dLLM's two caches: which slots are frozen, what that costs, and where it is exact."""

import pytest
import torch
from cached_runs import InOrder, rows, run, uncached

import contract
from unmask.caches import CACHES, CachePolicy
from unmask.core.canvas import plain_view, plan
from unmask.core.schedules import Sequential
from unmask.core.state import DenoisingState
from unmask.core.window import Window
from unmask.decoders.quota import LowConfidence

SPECS = ["none", "prefix", "dual"]

# Which slots are frozen ----------------------------------------------------------------------------------------------


def frozen(spec: str, age: int) -> list[list[int]]:
    """Frozen slots of two rows of 8 slots: the first has an open window of slots 3, 5, 6, the second of slots 6, 7."""
    state = DenoisingState.start([[1], [1]], 7, mask_id=9)
    opened = torch.zeros(2, 8, dtype=torch.bool)
    opened[0, [3, 5, 6]] = opened[1, [6, 7]] = True
    window = Window(opened, state.exists, opened, torch.tensor([age, age + 1]))
    flags = CACHES.make(spec).frozen(state, window, None)
    assert flags is not None
    return [row.nonzero()[:, 0].tolist() for row in flags]


BEFORE = ([0, 1, 2], [0, 1, 2, 3, 4, 5])
AROUND = ([0, 1, 2, 4, 7], [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("spec", "age", "expected"),
    [
        ("prefix", 0, ([], BEFORE[1])),  # the first row has just been opened, the second is a step older
        ("prefix", 1, BEFORE),
        ("prefix", 9, BEFORE),
        ("dual", 0, ([], AROUND[1])),
        ("dual", 1, AROUND),
        ("prefix(refresh=1)", 4, ([], [])),
        ("prefix(refresh=3)", 3, ([], BEFORE[1])),
        ("prefix(refresh=3)", 5, (BEFORE[0], [])),
        ("dual(refresh=2)", 2, ([], AROUND[1])),
        ("dual(refresh=2)", 1, (AROUND[0], [])),
    ],
)
def test_frozen_slots(spec: str, age: int, expected: tuple[list[int], list[int]]) -> None:
    assert frozen(spec, age) == list(expected)


def test_no_cache_freezes_nothing_and_keeps_nothing() -> None:
    policy = CACHES.make("none")
    state = DenoisingState.start([[1]], 3, mask_id=9)
    assert policy.frozen(state, Sequential().window(state, None), None) is None
    assert policy.exact and not policy.keeps
    assert not any(CACHES[name].exact or CACHES[name].fixed_canvas for name in ("prefix", "dual"))


@pytest.mark.parametrize("name", ["prefix", "dual"])
def test_a_refresh_is_at_least_1(name: str) -> None:
    with pytest.raises(ValueError, match="refresh must be at least 1, or None for once per window: got 0"):
        CACHES[name](refresh=0)  # type: ignore[call-arg]


# What it costs -------------------------------------------------------------------------------------------------------


P, G, B = 5, 32, 16
N = P + G
STARTS = (P, P + B)  # first slots of the two blocks


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_computed_are_those_of_the_cost_formulas(family: str, spec: str, backwards: bool) -> None:
    """A shifted model needs the row left of the block as long as the block's first slot is masked."""
    speaker = 1 if family == "dream" and backwards else 0  # from left to right, the opening step commits that slot
    inner = {"none": [N, N], "prefix": [N - start + speaker for start in STARTS], "dual": [B + speaker] * 2}[spec]
    expected = [count for each in inner for count in [N, *[each] * (B - 1)]]
    assert rows(run(family, InOrder(backwards), Sequential(B), spec, G)) == expected


def test_a_refreshed_cache_computes_everything_every_so_many_steps() -> None:
    taken = run("llada", InOrder(), Sequential(8), "dual(refresh=3)", 8)
    assert rows(taken) == [13, 8, 8, 13, 8, 8, 13, 8]


def test_a_short_last_block_costs_its_own_slots() -> None:
    taken = run("llada", InOrder(), Sequential(4), "dual", 6)
    assert rows(taken) == [11, 4, 4, 4, 11, 2]


def test_rows_of_a_batch_that_stand_in_different_blocks_cost_what_each_needs() -> None:
    """One slot of the first row's first block is given, so it opens its second block while the other row does not."""
    mask_id = contract.model("llada").facts.mask_id
    canvases: list[list[int | None]] = [[3, None, 5, None, None], [3, None, None, None, None]]
    state = DenoisingState.from_canvas(canvases, mask_id=mask_id)
    taken = list(contract.steps("llada", state, InOrder(), Sequential(2), CACHES.make("dual")))
    assert [step.rows_computed.tolist() for step in taken] == [[5, 5], [5, 2], [2, 5], [2]]


# Where it is exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("policy", [CACHES.make("prefix"), CACHES.make("dual")], ids=["prefix", "dual"])
def test_the_first_step_of_every_block_is_exact_and_later_ones_are_not(family: str, policy: CachePolicy) -> None:
    state = contract.first_state(family, (0,))
    exact, stale = [], []
    for step in contract.steps(family, state, LowConfidence(steps=9), Sequential(8), policy):
        ours, wanted = step.prediction.logits, uncached(step, contract.model(family).predictor)
        finite = wanted.isfinite()
        difference = float((ours[finite] - wanted[finite]).abs().max())
        (exact if int(step.window.age) == 0 else stale).append(difference)
    assert len(exact) == 3 and max(exact) < 1e-10
    assert max(stale) > 1e-3, "the cache is not used at all"


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_run_taken_up_in_the_middle_of_a_block_computes_everything_first(family: str) -> None:
    """Its store is empty: nothing may be frozen that was never computed."""
    middle = run(family, InOrder(backwards=True), Sequential(4), "dual", 8)[1].after
    taken = list(contract.steps(family, middle, InOrder(backwards=True), Sequential(4), CACHES.make("dual")))
    speaker = 1 if family == "dream" else 0
    assert rows(taken) == [13, 4 + speaker, 13, *[4 + speaker] * 3]
    ours, wanted = taken[0].prediction.logits, uncached(taken[0], contract.model(family).predictor)
    torch.testing.assert_close(ours[ours.isfinite()], wanted[wanted.isfinite()], rtol=0, atol=1e-10)


def test_the_first_block_is_exact_until_the_prompt_would_have_looked_at_it() -> None:
    """Prefix: keys of the prompt are those of the opening step. With a prompt that sees no answer they never age."""
    options = {"attention": "block_causal"}
    state = contract.first_state("llada", (0,))
    runs = [
        list(contract.steps("llada", state, LowConfidence(), Sequential(4), CACHES.make(spec), **options))  # type: ignore[arg-type]
        for spec in ("none", "prefix")
    ]
    for plain, cached in zip(*runs, strict=True):
        mine, wanted = cached.prediction.logits, plain.prediction.logits
        assert torch.equal(mine.isfinite(), wanted.isfinite())
        torch.testing.assert_close(mine[mine.isfinite()], wanted[wanted.isfinite()], rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("spec", ["prefix", "dual"])
def test_with_one_block_for_the_whole_answer_the_first_step_alone_is_exact(family: str, spec: str) -> None:
    """The prompt's keys are those of an answer full of masks until the end."""
    taken = run(family, LowConfidence(), Sequential(12), spec, 12)
    differences = []
    for step in taken:
        ours, wanted = step.prediction.logits, uncached(step, contract.model(family).predictor)
        differences.append(float((ours - wanted)[wanted.isfinite()].abs().max()))
    assert len(taken) == 12 and differences[0] < 1e-10
    assert min(differences[1:]) > 1e-4


@pytest.mark.parametrize(("spec", "known"), [("dual", [True, False, True]), ("dual(compat='fast-dllm')", [True] * 3)])
def test_a_token_that_changed_outside_the_window_is_recomputed_but_in_compat(spec: str, known: list[bool]) -> None:
    state = DenoisingState.from_canvas([[1, None, None]], mask_id=9)
    canvas, window = plain_view(state), Window(state.answer, state.exists, state.masked, state.step)
    store = CACHES.make(spec).open_store(state)
    assert not store.known(canvas.tokens).any()  # type: ignore[union-attr]
    store.note(canvas, plan(canvas, window, state.masked, None, 0))
    shown = torch.tensor([[1, 4, 9]])  # slot 1 has got its token since
    assert store.known(shown).tolist() == [known]  # type: ignore[union-attr]
