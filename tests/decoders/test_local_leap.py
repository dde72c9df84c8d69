"""LocalLeap, worked out by hand and against the threshold rule it extends."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ScriptedPredictor, drifting, steps, trace
from unmask.core.schedules import Sequential
from unmask.decoders import DECODERS
from unmask.decoders.local_leap import LocalLeap, around
from unmask.decoders.threshold import Threshold
from unmask.errors import RequestError


def slots_of(script: list[Any], decoder: LocalLeap, **options: Any) -> list[list[int]]:
    return [[slot for slot, _ in step] for step in trace(ScriptedPredictor(script, vocab_size=12), decoder, **options)]


def test_a_nearly_sure_slot_near_an_anchor_is_committed() -> None:
    """Masked slots 10..20. Slot 17 is 5 away from the anchor, slot 10 only 2, slot 15 3."""
    script = {slot: (1, 0.3) for slot in range(10, 21)} | {12: (1, 0.93), 15: (2, 0.8), 17: (3, 0.8), 10: (4, 0.76)}
    first = slots_of([script], LocalLeap(), prompt=[0] * 10, length=11)[0]
    assert first == [10, 12, 15]


def test_a_slot_at_the_radius_and_both_bounds_themselves_pass() -> None:
    script = {1: (1, 0.9), 5: (1, 0.75), 6: (1, 0.89)}
    assert slots_of([script], LocalLeap(), length=6)[0] == [1, 5]


def test_without_an_anchor_only_the_best_slot_is_committed() -> None:
    script = {1: (1, 0.8), 2: (1, 0.85), 3: (1, 0.89), 4: (1, 0.3)}
    assert slots_of([script], LocalLeap(), length=4)[0] == [3]


def test_what_was_committed_before_is_no_anchor() -> None:
    script = [{1: (1, 0.95), 2: (1, 0.3), 3: (1, 0.3)}, {2: (1, 0.8), 3: (1, 0.85)}]
    assert slots_of(script, LocalLeap(), length=3) == [[1], [3], [2]]


def test_only_open_slots_are_anchors_or_near_one() -> None:
    script = [{1: (1, 0.3), 2: (1, 0.8), 3: (1, 0.95), 4: (1, 0.8)}]
    assert slots_of(script, LocalLeap(), length=4, schedule=Sequential(2)) == [[2], [1], [3, 4]]


@pytest.mark.parametrize("decoder", [LocalLeap(0.6, 0.6), LocalLeap(0.6, 0.8, 9), LocalLeap(0.6, 0.1, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_without_relaxation_or_radius_it_is_the_threshold_rule(decoder: LocalLeap, seed: int) -> None:
    options = {"length": 12, "schedule": Sequential(6)}
    assert trace(drifting(seed), decoder, **options) == trace(drifting(seed), Threshold(0.6), **options)


@pytest.mark.parametrize("seed", range(5))
def test_it_commits_what_the_threshold_commits_on_the_same_canvas_and_more(seed: int) -> None:
    more = 0
    for step in steps(drifting(seed), LocalLeap(0.6, 0.4, 3), length=12, schedule=Sequential(6)):
        plain = Threshold(0.6).decide(step.before, step.window, step.prediction, None).commit
        assert not (plain & ~step.move.commit).any()
        more += int((step.move.commit & ~plain).sum())
    assert more > 0


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_around_reaches_as_far_as_the_radius(slots: list[bool], radius: int) -> None:
    found = around(torch.tensor([slots]), radius)[0].tolist()
    assert found == [
        any(there and abs(slot - other) <= radius for other, there in enumerate(slots)) for slot in range(len(slots))
    ]


def test_a_radius_is_a_number_of_slots() -> None:
    with pytest.raises(RequestError, match="radius must be a number of slots from 0 up: got -1"):
        DECODERS.make("local-leap(radius=-1)")
