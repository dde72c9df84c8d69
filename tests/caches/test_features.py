"""dLLM-Cache: where it is exact, what it redoes and what that costs, and rows that stand in different places."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from cached_runs import uncached
from torch import Tensor

import contract
from unmask.caches import CACHES, CachePolicy
from unmask.caches.features import Features, FeatureStore
from unmask.core.canvas import plain_view, plan
from unmask.core.compose import check_composition
from unmask.core.denoise import Step, denoise
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import LowConfidence
from unmask.errors import CompositionError
from unmask.models.backbone import Block
from unmask.models.guidance import Guided

BITING = Features(prompt_every=5, answer_every=3, share=0.3)
FAMILIES = ("llada", "dream")
EXACT = {
    "both at every step": Features(prompt_every=1, answer_every=1, share=0.0),
    "all answer rows in between": Features(prompt_every=1, answer_every=7, share=1.0),
}
PATTERNS = ("bidirectional", "block_causal")


def taken(
    family: str, policy: CachePolicy, rows: tuple[int, ...] = (0, 1, 2), *, count: int = 8, **options: Any
) -> list[Step]:
    """The first steps of a run, one token each."""
    state = contract.first_state(family, rows, infill=options.pop("infill", False))
    return list(islice(contract.steps(family, state, LowConfidence(), Sequential(8), policy, **options), count))


def network(family: str, attention: str) -> Any:
    """The predictor of such a run: a block-causal model sees blocks as the schedule cuts them."""
    return contract.model(family, attention).in_blocks(Sequential(8)).predictor


def difference(step: Step, predictor: Any) -> float:
    """The largest one between the logits of a step and the uncached ones, over all its rows."""
    ours, wanted = step.prediction.logits, uncached(step, predictor)
    return float((ours - wanted)[wanted.isfinite()].abs().max())


# Where it is exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", PATTERNS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", EXACT.values(), ids=EXACT)
def test_a_cache_that_redoes_everything_is_no_cache(policy: Features, family: str, attention: str) -> None:
    for step in taken(family, policy, attention=attention, infill=True):
        assert difference(step, network(family, attention)) < 1e-10
        assert torch.equal(step.rows_computed, step.before.exists.sum(-1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("spec", ["threshold(threshold=0.7)", "entropy(steps=9)"])
def test_answers_are_then_those_of_no_cache(policy: Features, family: str, spec: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)")
    plain, cached = (
        contract.run(family, contract.first_state(family), *parts, one, temperature=0.7)
        for one in (CACHES.make("none"), policy)
    )
    assert [contract.answer(plain, row) for row in range(3)] == [contract.answer(cached, row) for row in range(3)]


@pytest.mark.parametrize("attention", PATTERNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_at_which_both_parts_are_due_is_exact_and_others_are_not(family: str, attention: str) -> None:
    policy = Features(prompt_every=6, answer_every=3, share=0.3)
    predictor = network(family, attention)
    found = [difference(step, predictor) for step in taken(family, policy, (0,), count=13, attention=attention)]
    assert len(found) == 13 and max(found[::6]) < 1e-10
    assert all(max(found[first + 1 : first + 6]) > 1e-4 for first in (0, 6)), "the cache is not used at all"


def test_the_first_layer_is_always_fresh() -> None:
    """So a step sees new tokens at once: with one layer, every step is exact."""
    model = with_layers("llada", 1)
    state = contract.first_state("llada", (0,))
    for step in islice(decoded(model, state, Features(prompt_every=9, answer_every=9, share=0.0)), 8):
        assert difference(step, model) < 1e-10


def with_layers(family: str, count: int) -> Any:
    """The reference predictor with its first layers only."""
    predictor: Any = contract.model(family).predictor
    backbone = copy.copy(predictor.backbone)
    backbone._modules = {**backbone._modules, "blocks": backbone.blocks[:count]}
    return type(predictor)(backbone, predictor.facts)


def decoded(predictor: Any, state: DenoisingState, policy: CachePolicy) -> Iterator[Step]:
    parts: dict[str, Any] = {"schedule": Sequential(8), "cache": policy, "stop": Stopping("none")}
    return denoise(predictor, state, LowConfidence(), sampling=Sampling(precision=torch.float64), **parts)


# What is redone, and what it costs -----------------------------------------------------------------------------------

P, G, LAYERS = 6, 20, 3  # row 0 of the contract


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_computed_are_the_mean_over_layers_rounded_up(family: str) -> None:
    """Layer 0 redoes everything; the two others the parts that are due, or 0.3 * 20 = 6 answer rows."""
    inner = [P + G, 6, 6, G, 6, P + 6, G, 6, 6, G, P + 6]
    expected = [-(-((P + G) + 2 * rows) // LAYERS) for rows in inner]
    assert [int(step.rows_computed) for step in taken(family, BITING, (0,), count=11)] == expected


def test_a_share_below_one_row_is_no_row_and_a_row_without_work_stays_as_it_is() -> None:
    """13 answer rows * 0.05 = 0, while the row beside it has one row to redo."""
    policy = Features(prompt_every=50, answer_every=50, share=0.05)
    together, alone = taken("llada", policy, (0, 1), count=3), taken("llada", policy, (1,), count=3)
    assert [int(step.rows_computed[0]) for step in alone] == [16, 6, 6]  # 16 slots in one of three layers
    assert [step.rows_computed.tolist() for step in together] == [[26, 16], [10, 6], [10, 6]]
    for both, one in zip(together, alone, strict=False):
        asked = int(one.prediction.work.num_asked[0])
        torch.testing.assert_close(
            both.prediction.logits[1, :asked], one.prediction.logits[0, :asked], rtol=0, atol=1e-10
        )


def test_the_rows_of_a_layer_are_gathered_before_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute is saved, not only masked: attention and feed see as many rows as are redone."""
    seen: list[int] = []
    real = Block.feed

    def feed(self: Block, x: Tensor) -> Tensor:
        seen.append(x.shape[1])
        return real(self, x)

    monkeypatch.setattr(Block, "feed", feed)
    taken("llada", BITING, (0,))
    assert seen[:9] == [26, 26, 26, 26, 6, 6, 26, 6, 6]
    seen.clear()
    taken("llada", replace(BITING, share=0.0), (0,))
    assert seen[:8] == [26, 26, 26, 26, 26, 26, 20, 20]  # at the second and third step, two layers feed nothing


def test_the_rows_whose_values_moved_most_are_redone() -> None:
    """Between two refreshes; ties go to the lowest slot. The kept values are replaced everywhere."""
    policy = Features(prompt_every=9, answer_every=9, share=0.5)
    state = DenoisingState.start([[1, 2]], 4, mask_id=9)
    window = Sequential(4).window(state, None)
    work = plan(plain_view(state), window, state.masked, None, 0)
    store = policy.open_store(state)
    block = Copies()
    store.make_room(0, block, torch.zeros(1, 6, 2))
    store.make_room(1, block, torch.zeros(1, 6, 2))
    store.values[1][0, 0] = torch.tensor([[1.0, 0.0]] * 6)
    store.passes += 1
    now = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [3.0, 0.0]]])
    redone = policy._redone(block, 1, now, work, store)
    assert redone.nonzero()[:, 1].tolist() == [3, 4]  # the prompt moved more, but it is not due
    assert store.values[1][0, 0].tolist() == [[1.0, 0.0], [1.0, 0.0], *now[0, 2:].tolist()]
    still = policy._redone(block, 1, now, work, store)
    assert still.nonzero()[:, 1].tolist() == [2, 3]  # nothing has moved since: all are alike


class Copies(Block):
    """A block whose values are the rows themselves: one head of size 2."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.num_key_heads, self.head_size = 1, 2

    def values(self, x: Tensor) -> Tensor:
        return x[:, None]


# Rows in different places --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_decodes_in_a_batch_as_alone(family: str, temperature: float) -> None:
    parts = DECODERS.make("threshold(threshold=0.7)"), SCHEDULES.make("sequential(block_length=5)"), BITING
    contract.assert_batch_equals_alone(family, *parts, temperature=temperature)


@pytest.mark.parametrize("ran_first", [True, False])
def test_a_store_that_has_not_run_joins_one_that_has(ran_first: bool) -> None:
    state = contract.first_state("llada", (0,))
    predictor: Any = contract.model("llada").predictor
    old, new = predictor.open_store(state, BITING), predictor.open_store(state.widen(30), BITING)
    work = plan(plain_view(state), Sequential(8).window(state, None), state.masked, None, 0)
    predictor(plain_view(state), work, BITING, old)
    old.note(plain_view(state), work)
    joined = old.join_rows(new) if ran_first else new.join_rows(old)
    assert isinstance(joined, FeatureStore)
    mine, other = (0, 1) if ran_first else (1, 0)
    for layer in range(LAYERS):
        for kept, was in zip(joined.added[layer], old.added[layer], strict=True):
            assert torch.equal(kept[mine, :26], was[0]) and not kept[mine, 26:].any() and not kept[other].any()
        assert torch.equal(joined.keys[layer][mine, :, :26], old.keys[layer][0])
    assert joined.passes[[mine, other]].tolist() == [1, 0]
    swapped = joined.take_rows(torch.tensor([1, 0]))
    assert swapped.passes.tolist() == joined.passes.flip(0).tolist()
    assert torch.equal(swapped.added[1][0], joined.added[1][0].flip(0))


def test_two_generations_at_once_do_not_disturb_each_other() -> None:
    """One policy object, two runs that take turns; the second starts when the first is on its way."""
    first, second = contract.first_state("llada", (0,)), contract.first_state("llada", (1,))
    predictor = contract.model("llada").predictor
    alone = [[step.prediction.logits for step in decoded(predictor, state, BITING)] for state in (first, second)]
    one, other = decoded(predictor, first, BITING), decoded(predictor, second, BITING)
    turns: list[list[Tensor]] = [[next(one).prediction.logits, next(one).prediction.logits], []]
    for step in other:
        turns[1].append(step.prediction.logits)
        turns[0] += [further.prediction.logits for further in [next(one, None)] if further]
    turns[0] += [step.prediction.logits for step in one]
    for mixed, wanted in zip(turns, alone, strict=True):
        assert len(mixed) == len(wanted) and all(map(torch.equal, mixed, wanted))


# With others ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_guidance_keeps_features_of_both_passes(family: str) -> None:
    guided = Guided(contract.model(family).predictor, 1.5)
    steps = list(islice(decoded(guided, contract.first_state(family), replace(BITING, prompt_every=6)), 8))
    plain = taken(family, replace(BITING, prompt_every=6))
    assert [step.rows_computed.tolist() for step in steps] == [(2 * step.rows_computed).tolist() for step in plain]
    for step in steps[::6]:
        assert difference(step, guided) < 1e-10
    assert difference(steps[1], guided) > 1e-4


def test_parts_that_change_the_canvas_are_refused() -> None:
    class Reshaping(Decoder):
        reshapes = True

    with pytest.raises(CompositionError, match="Reshaping cannot run with Features"):
        check_composition(Reshaping(), Sequential(), BITING)
    with pytest.raises(CompositionError, match="Pipelined cannot run with Features"):
        check_composition(LowConfidence(), SCHEDULES.make("pipelined"), BITING)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("prompt_every", 0, "prompt_every must be at least 1 step: got 0"),
        ("answer_every", -2, "answer_every must be at least 1 step: got -2"),
        ("share", 1.5, "share must be a share of the answer's rows, 0 to 1: got 1.5"),
        ("share", float("nan"), "got nan"),
    ],
)
def test_bad_fields_are_refused(field: str, value: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Features(**{field: value})  # type: ignore[arg-type]
