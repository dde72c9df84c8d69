"""The entropy bound, worked out by hand and against a search in plain Python."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ScriptedPredictor, drifting, steps, trace
from unmask.core.schedules import Sequential
from unmask.decoders import DECODERS
from unmask.decoders.entropy_bound import EntropyBound, joint_error
from unmask.decoders.quota import Entropy, LowConfidence, TopkMargin
from unmask.errors import RequestError

ORDERS: list[Any] = [("confidence", LowConfidence), ("entropy", Entropy), ("margin", TopkMargin)]


def with_entropy(nats: float) -> list[float]:
    """Three tokens, two of them equally likely, and the mask: a distribution of the given entropy."""
    low, high = 1 / 3, 1.0  # of the first token
    for _ in range(80):
        best = (low + high) / 2
        rest = torch.tensor([best, (1 - best) / 2, (1 - best) / 2], dtype=torch.float64)
        low, high = (best, high) if float(torch.special.entr(rest).sum()) > nats else (low, best)
    return [*rest.tolist(), 0.0]


def longest_run(entropies: list[float], gamma: float) -> int:
    count = 1
    while count < len(entropies) and sum(entropies[: count + 1]) - max(entropies[: count + 1]) <= gamma:
        count += 1
    return count


@pytest.mark.parametrize(("gamma", "expected"), [(0.049, 2), (0.05, 2), (0.1, 3), (0.27, 4), (0.009, 1)])
def test_in_the_order_of_entropy_all_but_the_last_slot_have_to_fit(gamma: float, expected: int) -> None:
    script = {slot: with_entropy(nats) for slot, nats in enumerate([0.01, 0.05, 0.2, 0.9], start=1)}
    first = trace(ScriptedPredictor([script], vocab_size=4), EntropyBound(gamma), length=4)[0]
    assert [slot for slot, _ in first] == list(range(1, expected + 1))


def test_in_another_order_the_largest_entropy_so_far_is_not_counted() -> None:
    entropies = torch.tensor([[0.2, 0.01, 0.05, 0.9]], dtype=torch.float64)
    error = joint_error(entropies, torch.arange(4)[None])[0].tolist()
    assert error == pytest.approx([0.0, 0.01, 0.06, 0.26])  # .26 = .2 + .01 + .05, of 1.16 less .9
    assert [bound <= 0.1 for bound in error] == [True, True, True, False]


def test_the_bound_itself_passes() -> None:
    """Slots of entropy ln 2 in float64; two of them count one."""
    even = [0.5, 0.5, 0.0, 0.0]
    predictor = ScriptedPredictor([{1: even, 2: even, 3: even}], vocab_size=4)
    step = steps(predictor, EntropyBound(1e-9), length=3)[0]
    bound = float(step.prediction.entropy[0, 1])
    assert [len(one) for one in trace(predictor, EntropyBound(bound), length=3)] == [2, 1]
    assert [len(one) for one in trace(predictor, EntropyBound(bound * 0.999), length=3)] == [1, 1, 1]


def test_a_bound_of_0_commits_one_slot_and_those_without_any_doubt() -> None:
    sure, unsure = [0.0, 1.0, 0.0, 0.0], with_entropy(0.3)
    predictor = ScriptedPredictor([{1: unsure, 2: sure, 3: unsure, 4: sure}], vocab_size=4)
    slots = [[slot for slot, _ in step] for step in trace(predictor, EntropyBound(0.0), length=4)]
    assert slots == [[1, 2, 4], [3]]  # nothing without doubt adds to the sum, so one in doubt fits too


@pytest.mark.parametrize(("order", "baseline"), ORDERS)
@pytest.mark.parametrize("gamma", [-1.0, 1e-12])
@pytest.mark.parametrize("seed", range(3))
def test_a_tiny_bound_is_one_slot_per_step_in_the_same_order(
    order: Any, baseline: Any, gamma: float, seed: int
) -> None:
    options = {"length": 12, "schedule": Sequential(6)}
    bounded = trace(drifting(seed), EntropyBound(gamma, order), **options)
    assert bounded == trace(drifting(seed), baseline(), **options)
    assert len(bounded) == 12


def test_the_three_orders_differ() -> None:
    runs = [trace(drifting(0), EntropyBound(1e-12, order), length=12) for order, _ in ORDERS]
    assert runs[0] != runs[1] != runs[2] != runs[0]


@pytest.mark.parametrize(("order", "_baseline"), ORDERS)
def test_without_a_bound_a_block_is_one_forward(order: Any, _baseline: Any) -> None:
    taken = trace(drifting(1), EntropyBound(float("inf"), order), length=12, schedule=Sequential(5))
    assert [len(step) for step in taken] == [5, 5, 2]


@given(st.integers(0, 10_000), st.floats(0.0, 3.0), st.sampled_from(ORDERS))
@settings(max_examples=40, deadline=None)
def test_the_run_is_the_longest_one_within_the_bound(seed: int, gamma: float, ordered: Any) -> None:
    step = steps(drifting(seed), EntropyBound(gamma, ordered[0]), length=12)[0]
    prediction = step.prediction
    score = -prediction.entropy[0] if ordered[0] == "entropy" else getattr(prediction, ordered[0])[0]
    order = sorted(range(1, 13), key=lambda slot: -float(score[slot]))
    count = longest_run([float(prediction.entropy[0, slot]) for slot in order], gamma)
    assert set(step.move.commit[0].nonzero()[:, 0].tolist()) == set(order[:count])


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=9), st.randoms())
@settings(max_examples=40, deadline=None)
def test_the_error_never_falls_along_the_order(entropies: list[float], random: Any) -> None:
    """So a larger bound never commits fewer slots of the same canvas."""
    places = list(range(len(entropies)))
    random.shuffle(places)
    error = joint_error(torch.tensor([entropies]), torch.tensor([places]))[0]
    along = error[torch.tensor(places).argsort()]
    assert (along[1:] >= along[:-1]).all() and along[0] == 0.0


def test_an_order_that_is_none_is_refused() -> None:
    """Set behind the back of the tests' type checker, which would refuse it first."""
    decoder = EntropyBound()
    object.__setattr__(decoder, "order", "luck")
    with pytest.raises(ValueError, match='order must be "confidence", "margin" or "entropy": got "luck"'):
        decoder.__post_init__()
    with pytest.raises(RequestError, match="luck"):
        DECODERS.make("entropy-bound(order='luck')")
