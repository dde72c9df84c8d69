"""Prophet worked out by hand, and its bounds at their ends."""

from math import exp, inf, nextafter
from typing import Any

import pytest
import torch

import contract
from fakes import ScriptedPredictor, steps, trace
from unmask.caches import CACHES
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Pipelined, Sequential, Whole
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS
from unmask.decoders.prophet import Prophet
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.decoders.wino import Wino
from unmask.errors import RequestError

END = 8


def sure(gap: float, token: int = 1, size: int = 10) -> list[float]:
    """A distribution whose best logit leads all others by `gap`."""
    rest = 1.0 / (exp(gap) + size - 2)
    chances = [rest] * size
    chances[size - 1] = 0.0  # the mask
    chances[token] = 1.0 - rest * (size - 2)
    return chances


def prophet(**options: Any) -> Prophet:
    return Prophet(LowConfidence(), **({"early": 3.0, "middle": 2.0, "late": 1.0} | options))


def lengths_of(*entries: dict[int, list[float]], decoder: Prophet | None = None, length: int = 4) -> list[int]:
    """How many slots each step commits."""
    predictor = ScriptedPredictor(list(entries), end_ids=(END,))
    state = DenoisingState.start([[0]], length, mask_id=9, end_ids=(END,))
    return [len(step) for step in trace(predictor, decoder or prophet(), state=state)]


def everywhere(gap: float, slots: int = 4) -> dict[int, list[float]]:
    return {slot: sure(gap) for slot in range(1, slots + 1)}


def test_a_sure_answer_is_committed_at_once() -> None:
    """Four slots, one per step: progress 1/4, 2/4, 3/4 and 1, so the bounds are 3, 2, 1 and 1."""
    assert lengths_of(everywhere(3.1)) == [4]
    assert lengths_of(everywhere(2.9)) == [1, 3]
    assert lengths_of(everywhere(1.9)) == [1, 1, 2]
    assert lengths_of(everywhere(0.9)) == [1, 1, 1, 1]


def test_the_bound_itself_passes() -> None:
    script = [{1: sure(3.0), 2: sure(0.1)}]
    gap = float(steps(ScriptedPredictor(script), LowConfidence(), length=2)[0].prediction.gap[0, 1])
    assert gap == pytest.approx(3.0)
    for bound, lengths in ((gap, [2]), (nextafter(gap, inf), [1, 1])):
        decoder = prophet(early=bound, middle=bound, late=inf, region=(0, 1))
        assert lengths_of(*script, decoder=decoder, length=2) == lengths


def test_the_mean_over_the_region_counts_or_its_smallest_lead() -> None:
    mixed = {1: sure(1.0), 2: sure(6.0), 3: sure(6.0), 4: sure(1.0)}  # mean 3.5
    assert lengths_of(mixed) == [4]
    assert lengths_of(mixed, decoder=prophet(average="min"))[0] == 1


def test_what_lies_behind_the_first_end_token_does_not_count() -> None:
    """Slot 3 expects the end; slot 4, of which nothing is known, is committed all the same."""
    assert lengths_of({1: sure(3.1), 2: sure(3.1), 3: sure(3.1, END), 4: sure(0.1)}) == [4]
    assert lengths_of({1: sure(3.1), 2: sure(3.1), 3: sure(3.1), 4: sure(0.1)})[0] == 1
    assert lengths_of({1: sure(3.1), 2: sure(3.1), 3: sure(0.1, END), 4: sure(9.0)})[0] == 1, "the end itself counts"


def test_a_committed_end_token_ends_the_region_too() -> None:
    """Step 1 commits the end at slot 2; then slot 1 alone counts, until only what does not count is left."""
    first = {1: sure(0.5), 2: sure(4.0, END), 3: sure(0.2), 4: sure(0.2)}
    assert lengths_of(first, {1: sure(2.1), 3: sure(0.2), 4: sure(0.2)}) == [1, 3]
    assert lengths_of(first, {1: sure(0.5), 3: sure(0.2), 4: sure(0.2)}) == [1, 1, 1, 1]


def test_a_fixed_region_counts_decided_slots_too_and_no_others() -> None:
    decoder = prophet(region=(1, 2))  # slots 2 and 3
    assert lengths_of({1: sure(0.1), 2: sure(3.1), 3: sure(3.1), 4: sure(0.1)}, decoder=decoder) == [4]
    low, high = {2: sure(0.1), 3: sure(2.5)}, {2: sure(4.0), 3: sure(0.2)}
    assert lengths_of(low, high | {1: sure(0.1)}, decoder=decoder) == [1, 3], "slot 3 was decided; 4.0 + 0.2 pass 2 * 2"
    assert lengths_of(everywhere(9.0), decoder=prophet(region=(4, 2))) == [1, 1, 1, 1], "the canvas ends before it"
    assert lengths_of({1: sure(0.1), 4: sure(9.0)}, decoder=prophet(region=(3, 5)))[0] == 4, "its part on the canvas"


def test_planned_steps_say_how_far_a_row_is() -> None:
    """With 12 planned steps the first four are early (4 / 12 is not below 0.33, so three); then 2.5 passes."""
    decoder = Prophet(LowConfidence(), 3.0, 2.0, 1.0, steps=12)
    assert lengths_of(everywhere(2.5, 12), decoder=decoder, length=12) == [1, 1, 1, 9]
    late = Prophet(LowConfidence(), inf, inf, 1.0, steps=2)
    assert lengths_of(everywhere(2.5, 12), decoder=late, length=12) == [1, 11], "the plan is over after two"


def test_without_a_plan_a_decided_slot_counts_as_a_step() -> None:
    for steps_planned in (None, 12):
        decoder = Prophet(LowConfidence(), inf, 2.0, 1.0, steps=steps_planned)
        assert lengths_of(everywhere(2.5, 12), decoder=decoder, length=12) == [1, 1, 1, 9]
    quick = {slot: sure(9.0 if slot < 6 else 0.6) for slot in range(1, 13)}
    assert lengths_of(quick, decoder=Prophet(Threshold(0.9), inf, 0.5, 0.5), length=12) == [5, 7]


def test_later_blocks_are_committed_too_and_given_text_stays() -> None:
    canvas = [0, None, None, None, 5, None, None]
    state = DenoisingState.from_canvas([canvas], mask_id=9)
    run = steps(ScriptedPredictor([everywhere(4.0, 6)]), prophet(), state=state, schedule=Sequential(2))
    assert len(run) == 1 and run[0].after.tokens.tolist() == [[0, 1, 1, 1, 5, 1, 1]]
    assert run[0].move.commit[0].nonzero()[:, 0].tolist() == [1, 2, 3, 5, 6]


def test_a_block_that_does_not_exist_yet_is_left_alone() -> None:
    run = steps(ScriptedPredictor([everywhere(4.0, 6)]), prophet(), length=6, schedule=Pipelined(3, add=1.0))
    assert [step.move.commit[0].nonzero()[:, 0].tolist() for step in run] == [[1, 2, 3], [4, 5, 6]]


def test_an_end_token_that_was_held_back_may_go_with_everything_left_of_it() -> None:
    script = [{1: sure(4.0), 2: sure(4.0, END), 3: sure(4.0)}]
    predictor = ScriptedPredictor(script, end_ids=(END,))
    run = steps(predictor, prophet(), length=3, stop=Stopping("none", hold_end=True))
    assert run[0].after.tokens[0, 1:].tolist() == [1, END, 1]


def test_a_row_that_is_done_takes_nothing_back() -> None:
    """WINO would take slot 1 back at step 2; the certainty of what is left closes the row instead."""
    unsure = {1: (1, 0.65), 2: (2, 0.65), 3: (3, 0.3), 4: (4, 0.3)}
    script = [unsure, {3: sure(5.0), 4: sure(5.0)}]
    wino = Wino(draft=0.6, verify=0.9)
    assert steps(ScriptedPredictor(script), wino, length=4)[1].move.revoke.any()  # type: ignore[union-attr]
    run = steps(ScriptedPredictor(script), Prophet(wino, 4.0, 4.0, 4.0), length=4)
    assert len(run) == 2 and not run[1].move.revoke.any() and run[1].after.done.all()  # type: ignore[union-attr]


def test_at_a_temperature_the_lead_is_free_of_noise() -> None:
    sampling = Sampling(temperature=5.0, precision=torch.float64)
    for gap, nfe in ((3.1, 1), (0.9, 4)):
        assert len(steps(ScriptedPredictor([everywhere(gap)]), prophet(), length=4, sampling=sampling)) == nfe


@pytest.mark.parametrize("inner", ["low-confidence(steps=9)", "threshold(threshold=0.7)", "random"])
def test_unreachable_bounds_are_the_inner_method_alone(inner: str) -> None:
    parts = SCHEDULES.make("sequential(block_length=8)"), CACHES.make("none")
    state = contract.first_state("dream", infill=True)
    never = f"prophet({inner}, early=1e999, middle=1e999, late=1e999)"
    plain, wrapped = (
        contract.run("dream", state, DECODERS.make(spec), *parts, temperature=0.6) for spec in (inner, never)
    )
    for name in ("row", "step", "slot", "token", "passes"):
        assert torch.equal(getattr(plain, name), getattr(wrapped, name))


def test_bounds_below_everything_take_the_first_forward_as_it_is() -> None:
    state = contract.first_state("llada", infill=True)
    decoder = Prophet(LowConfidence(), -inf, -inf, -inf)
    only, *more = contract.steps("llada", state, decoder, Sequential(8), CACHES.make("none"))
    assert not more and only.after.done.all()
    assert torch.equal(only.after.tokens[state.masked], only.prediction.tokens[state.masked])


def test_higher_bounds_never_end_a_row_earlier() -> None:
    ends = []
    for bound in (0.5, 2.0, 3.0, 5.0, inf):
        decoder = Prophet(LowConfidence(), bound, bound, bound)
        run = contract.run("llada", contract.first_state("llada"), decoder, Sequential(8), CACHES.make("none"))
        ends.append([run.nfe(row) for row in range(3)])
    assert all(list(row) == sorted(row) for row in zip(*ends, strict=True))
    assert ends[0] < ends[-1]


@pytest.mark.parametrize("spec", ["prophet(threshold, early=3.0)", "prophet(low-confidence, region=(2, 3), late=0.5)"])
def test_rows_decode_as_if_alone(spec: str) -> None:
    contract.assert_batch_equals_alone("llada", DECODERS.make(spec), Whole(), CACHES.make("prefix"), temperature=0.5)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("early=1e999-1e999", "cannot read"),
        ("average='median'", "wants Literal"),
        ("region=(2,)", "region"),
        ("region=(-1, 2)", "region must be"),
        ("region=(0, 0)", "region must be"),
        ("region=(0, 2.5)", "region"),
        ("steps=0", "steps must be at least 1"),
    ],
)
def test_senseless_fields_are_refused(field: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        DECODERS.make(f"prophet(threshold, {field})")
    with pytest.raises(ValueError, match="early must be a number"):
        Prophet(Threshold(), early=inf - inf)


def test_at_a_temperature_what_is_filled_is_drawn() -> None:
    """As published: the noise decides about the tokens, not about when."""
    sampling = Sampling(temperature=5.0, precision=torch.float64)
    state = DenoisingState.start([[0]] * 8, 4, mask_id=9)
    only, *more = steps(ScriptedPredictor([everywhere(3.1)]), prophet(), state=state, sampling=sampling)
    assert not more and torch.equal(only.after.tokens[state.masked], only.prediction.tokens[state.masked])
    assert len(only.after.tokens[state.masked].unique()) > 1, "the favourite was drawn every time"
