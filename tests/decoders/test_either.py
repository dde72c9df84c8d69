"""Two methods at once, worked out by hand and against each alone."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
from fakes import ScriptedPredictor, steps, trace
from unmask.caches import CACHES
from unmask.core.compose import check_composition
from unmask.core.schedules import SCHEDULES, Pipelined, Sequential, Sliding, Whole
from unmask.core.state import Move
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.dc_leap import DcLeap
from unmask.decoders.either import Either
from unmask.decoders.leap import Leap
from unmask.decoders.lopa import Lopa
from unmask.decoders.quota import LowConfidence, MaskgitPlus
from unmask.decoders.threshold import Threshold
from unmask.decoders.wino import Wino
from unmask.errors import CompositionError
from unmask.registry import spec_of


@dataclass(frozen=True, slots=True)
class EveryOther(Decoder):
    """Commits what it may at every second of its own steps, and nothing in between."""

    @property
    def idles(self) -> bool:
        return True

    def begin(self, state: Any) -> Tensor:
        return torch.zeros_like(state.step)

    def decide(self, state: Any, window: Any, prediction: Any, memory: Tensor) -> tuple[Move, Tensor]:
        commit = self.eligible(state, window, prediction) & (memory % 2 == 1)[:, None] & (state.slots < 3)
        return self.move(state, commit, prediction), memory + 1


class OnWholeOnly(Threshold):
    schedule = Whole


def test_what_one_of_the_two_commits_is_committed() -> None:
    """The threshold takes slots 1 and 4, the quota of one per step the best: slot 1, then 3, then 2."""
    script = [{1: (1, 0.95), 2: (2, 0.5), 3: (3, 0.7), 4: (4, 0.9)}, {2: (5, 0.6), 3: (6, 0.8)}]
    both = Either(Threshold(0.9), LowConfidence())
    assert trace(ScriptedPredictor(script), both, length=4) == [[(1, 1), (4, 4)], [(3, 6)], [(2, 5)]]


def test_each_keeps_a_memory_of_its_own() -> None:
    """EveryOther commits slots 1 and 2 at its second step, whatever the threshold has done meanwhile."""
    script = [{slot: (slot, 0.2 + slot / 10) for slot in range(1, 6)}]
    for both in (Either(EveryOther(), Threshold(0.9)), Either(Threshold(0.9), EveryOther())):
        commits = [[slot for slot, _ in step] for step in trace(ScriptedPredictor(script), both, length=5)]
        assert commits == [[5], [1, 2, 4], [3]]


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_with_a_stricter_threshold_it_is_the_looser_one(family: str) -> None:
    parts = SCHEDULES.make("sequential(block_length=8)"), CACHES.make("dual")
    loose, both = (
        contract.run(family, contract.first_state(family), DECODERS.make(spec), *parts)
        for spec in ("threshold(threshold=0.6)", "either(threshold(threshold=0.6), threshold(threshold=0.9))")
    )
    for name in ("row", "step", "kind", "slot", "token", "passes"):
        assert torch.equal(getattr(loose, name), getattr(both, name))


def test_with_local_leap_it_commits_what_both_rules_would_have() -> None:
    """Every step of the pair is the union of what each rule says about the same prediction."""
    first, second = DECODERS.make("threshold(threshold=0.8)"), DECODERS.make("local-leap(anchor=0.7, relaxed=0.4)")
    state, apart = contract.first_state("llada"), 0
    for step in contract.steps("llada", state, Either(first, second), Sequential(8), CACHES.make("none")):
        one, other = (
            part.decide(step.before, step.window, step.prediction, part.begin(step.before)) for part in (first, second)
        )
        assert isinstance(one, Move) and isinstance(other, Move)
        assert torch.equal(step.move.commit, one.commit | other.commit)
        apart += int((one.commit ^ other.commit).any())
    assert apart > 0, "the two rules have to differ somewhere"


def test_the_canvas_is_that_of_the_one_that_adds_slots_and_the_other_never_sees_them() -> None:
    """WINO shows shadows from the second step on; the threshold beside it decides about answer slots all the same."""
    script = [{1: (1, 0.7), 2: (2, 0.65), 3: (3, 0.3), 4: (4, 0.35)}, {3: (3, 0.3), 4: (4, 0.95)}]
    for both in (Either(Wino(draft=0.6), Threshold(0.9)), Either(Threshold(0.9), Wino(draft=0.6))):
        seen = steps(ScriptedPredictor(script), both, length=4)
        assert [step.canvas.extra > 0 for step in seen][:2] == [False, True]
        assert seen[1].move.revoke is not None and seen[1].move.commit[0].nonzero().tolist() == [[4]]


@pytest.mark.parametrize(("shadow", "replica", "early"), [(4, 3, [3]), (3, 4, [])])
def test_of_two_that_add_slots_each_hears_its_own(shadow: int, replica: int, early: list[int]) -> None:
    """At the second step WINO commits slots 4 and 5 and takes 2 back, and LEAP commits 3 early if the replica agrees.

    Slots 6 to 10 are the shadows of slots 1 to 5, 11 to 13 candidates of slots 3 to 5, and 14 to 16 their replicas.
    """
    script = [
        {1: (1, 0.95), 2: (2, 0.95), 3: (3, 0.8), 4: (4, 0.5), 5: (5, 0.5)},
        {3: (3, 0.8), 4: (4, 0.95), 5: (5, 0.95), 6: (1, 0.95), 7: (2, 0.2), 8: (shadow, 0.9), 14: (replica, 0.9)},
    ]
    both = Either(Wino(draft=0.9, verify=0.9, shadows="all"), Leap(accept=0.99, early=0.7))
    first, second, *_ = steps(ScriptedPredictor(script), both, length=5)
    assert (first.canvas.extra, second.canvas.extra) == (5, 11)
    assert first.move.commit[0].nonzero().flatten().tolist() == [1, 2]
    assert second.move.commit[0].nonzero().flatten().tolist() == [*early, 4, 5]
    assert second.move.revoke is not None and second.move.revoke[0].nonzero().flatten().tolist() == [2]


def test_what_it_declares_follows_from_the_two() -> None:
    calm = Either(Threshold(), LowConfidence(steps=4))
    assert (calm.revokes, calm.reshapes, calm.idles, calm.spreads, calm.overreaches) == (False,) * 3 + (True, False)
    wild = Either(Threshold(), Wino())
    assert wild.revokes and wild.reshapes and not wild.shows_plainly and not wild.spreads
    assert Either(Threshold(), DcLeap()).schedule is Sliding
    assert Either(Threshold(), LowConfidence()).schedule is None
    assert not Either(Threshold(), MaskgitPlus(compat="dream")).idles, "the other one makes progress"
    assert Either(MaskgitPlus(compat="dream"), MaskgitPlus(compat="dream")).idles
    assert DECODERS.make("either(threshold, prophet(threshold))").overreaches


@pytest.mark.parametrize(
    ("both", "reason"),
    [
        (Either(Wino(), DcLeap()), r"both change what the model is shown.*such as \"threshold\""),
        (Either(Wino(), Wino()), "both take tokens back"),
        (Either(Lopa(Threshold()), Threshold()), r"Either cannot hold Lopa: .*Put Either inside Lopa"),
        (Either(DcLeap(), OnWholeOnly()), "schedules Sliding and Whole only"),
        (Either(Leap(), DcLeap()), "both change what the model is shown"),
        (Either(Either(Wino(), Wino()), Threshold()), "both take tokens back"),
    ],
)
def test_pairs_that_clash_are_refused_with_a_way_out(both: Either, reason: str) -> None:
    with pytest.raises(CompositionError, match=reason):
        check_composition(both, Sequential(), CACHES.make("none"))


class Undoing(Threshold):
    revokes = True


def test_two_that_take_tokens_back_are_refused() -> None:
    with pytest.raises(CompositionError, match="both take tokens back, and together they might undo each other"):
        check_composition(Either(Undoing(), Wino()), Sequential(), CACHES.make("none"))


def test_what_its_parts_cannot_do_it_cannot_do_either() -> None:
    with pytest.raises(CompositionError, match="Either cannot run on Pipelined"):
        check_composition(Either(Threshold(), Wino()), Pipelined(), CACHES.make("none"))
    with pytest.raises(CompositionError, match="Either cannot spread a number of steps"):
        check_composition(Either(Threshold(), LowConfidence(steps=3)), Pipelined(), CACHES.make("none"))


def test_its_spec_names_both() -> None:
    spec = "either(first=threshold(threshold=0.8), second=wino)"
    assert spec_of(DECODERS, DECODERS.make("either(threshold(threshold=0.8), wino)")) == spec
    assert DECODERS.make(spec) == Either(Threshold(0.8), Wino())


def test_rows_decode_as_if_alone() -> None:
    decoder = DECODERS.make("either(wino(draft=0.5), local-leap(anchor=0.7, relaxed=0.5))")
    contract.assert_batch_equals_alone("llada", decoder, Sequential(8), CACHES.make("none"), temperature=0.7)
