"""The invariants that every decoder, schedule and cache keeps, as plain functions (docs/structure.md lists them).

A new decoder's test calls `assert_decoder_contract(Name())`; the project's own tests run every function here over every
composition that `check_composition` accepts. Models are the reference checkpoints in float64, so that rounding decides
nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch

import unmask
from conftest import REFERENCE
from unmask.caches import CACHES, CachePolicy
from unmask.core.compose import check_composition
from unmask.core.denoise import Step, denoise
from unmask.core.metrics import useful
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping, settled
from unmask.core.trajectory import Trajectory
from unmask.decoders import DECODERS, Decoder
from unmask.errors import CompositionError

DECODER_SPECS = (
    "low-confidence",
    "low-confidence(steps=7)",
    "random(steps=9)",
    "maskgit-plus(steps=6)",
    "maskgit-plus(steps=6, order_temperature=0.5)",
    "maskgit-plus(steps=8, compat='dream')",
    "topk-margin(steps=10)",
    "entropy(steps=10)",
    "entropy(steps=12, compat='fast-dllm')",
    "origin(steps=8)",
    "threshold(threshold=0.9)",
    "threshold(threshold=0.6)",
    "threshold(threshold=0.8, steps=6)",
    "threshold(threshold=0.8, compat='fast-dllm-dream')",
    "factor(factor=1.0)",
    "factor(factor=1.0, compat='fast-dllm')",
)
SCHEDULE_SPECS = ("whole", "sequential(block_length=8)", "sequential(block_length=5)")
CACHE_SPECS = ("none", "prefix", "dual", "prefix(refresh=2)", "dual(refresh=3)")

PROMPTS = ([3, 14, 15, 9, 20, 6], [5, 35, 8], [9, 7, 9, 3, 2, 3, 8, 4, 6, 21, 40, 33])  # characters of both tokenizers
LENGTHS = (20, 13, 8)  # no multiple of the block lengths among them


@cache
def model(family: str, attention: str = "bidirectional") -> unmask.Model:
    pattern = {} if attention == "bidirectional" else {"attention": "block_causal", "block_length": 4}
    return unmask.load(REFERENCE / "ckpt" / family, device="cpu", dtype="float64", **pattern)  # type: ignore[arg-type]


def composes(decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> bool:
    try:
        check_composition(decoder, schedule, policy)
    except CompositionError:
        return False
    return True


def compositions(decoders: Sequence[str | Decoder] = DECODER_SPECS) -> Iterator[tuple[Decoder, Schedule, CachePolicy]]:
    """Every accepted triple."""
    for decoder in map(DECODERS.make, decoders):
        for schedule in map(SCHEDULES.make, SCHEDULE_SPECS):
            for policy in map(CACHES.make, CACHE_SPECS):
                if composes(decoder, schedule, policy):
                    yield decoder, schedule, policy


def first_state(family: str, rows: Sequence[int] = (0, 1, 2), infill: bool = False) -> DenoisingState:
    """Ragged rows; row i draws from stream i wherever it stands. With `infill`, the last row has given text inside."""
    facts = model(family).facts
    canvases = [[*PROMPTS[row], *[None] * LENGTHS[row]] for row in rows]
    if infill:
        canvases[-1][-4:-2] = [11, 12]
    return DenoisingState.from_canvas(canvases, mask_id=facts.mask_id, seeds=list(rows))


def steps(
    family: str,
    state: DenoisingState,
    decoder: Decoder,
    schedule: Schedule,
    policy: CachePolicy,
    *,
    temperature: float = 0.0,
    stop: str = "none",
    attention: str = "bidirectional",
) -> Iterator[Step]:
    sampling = Sampling(temperature=temperature, precision=torch.float64)
    return denoise(
        model(family, attention).predictor,
        state,
        decoder,
        schedule=schedule,
        cache=policy,
        sampling=sampling,
        stop=Stopping(stop),  # type: ignore[arg-type]
    )


def run(family: str, state: DenoisingState, *parts: object, **options: object) -> Trajectory:
    return Trajectory.collect(state, steps(family, state, *parts, **options))  # type: ignore[arg-type]


def answer(trajectory: Trajectory, row: int = 0) -> tuple[list[int], int]:
    """Final answer tokens and NFE of a row."""
    final = trajectory.final(row)
    return final.tokens[0][final.answer[0]].tolist(), trajectory.nfe(row)


def assert_steps_keep_the_invariants(family: str, decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> None:
    """Given slots stay; masks change by the move alone; progress; no mask token; NFE = steps; it ends; replay is equal;
    what was settled stays."""
    state = first_state(family, infill=True)
    mask_id, revokes = state.mask_id, decoder.revokes
    seen, last, shown = [0] * 3, {}, {}
    record = []
    for step in steps(family, state, decoder, schedule, policy, temperature=0.7):
        record.append(step)
        before, after, move = step.before, step.after, step.move
        assert torch.equal(before.tokens[before.given], after.tokens[after.given])
        assert torch.equal(before.given, after.given) and torch.equal(before.exists, after.exists)
        revoked = torch.zeros_like(move.commit) if move.revoke is None else move.revoke
        assert torch.equal(after.masked, before.masked & ~move.commit & ~step.filled | revoked)
        assert not (move.commit & (revoked | ~step.window.open)).any()
        assert revokes or not revoked.any()
        kept = ~before.masked & ~revoked
        assert torch.equal(before.tokens[kept], after.tokens[kept])
        assert (after.tokens[move.commit] != mask_id).all(), "the mask token was committed"
        assert decoder.idles or (move.changes | ~step.window.must.any(-1)).all(), "a step made no progress"
        stays = settled(after, step.window, revokes)
        for place, row in enumerate(step.row_ids.tolist()):
            seen[row] += 1
            last[row] = after.tokens[place]
            slots = stays[place].nonzero()[:, 0]
            prefix = after.tokens[place][slots].tolist()
            assert prefix[: len(shown.get(row, []))] == shown.get(row, []), "settled text changed"
            shown[row] = prefix
    trajectory = Trajectory.collect(state, iter(record))
    for row in range(3):
        final = trajectory.final(row)
        assert not final.masked.any(), "masks were left"
        assert torch.equal(final.tokens[0], last[row])
        assert trajectory.nfe(row) == seen[row] == int(final.step[0])
        assert shown[row] == final.tokens[0][final.answer[0]].tolist()[: len(shown[row])]


def assert_batch_equals_alone(
    family: str, decoder: Decoder, schedule: Schedule, policy: CachePolicy, temperature: float = 0.0
) -> None:
    """A row's tokens and NFE do not depend on its batch mates, nor on their order; the same seed gives the same."""
    together = run(family, first_state(family), decoder, schedule, policy, temperature=temperature)
    shuffled = run(family, first_state(family, (2, 0, 1)), decoder, schedule, policy, temperature=temperature)
    for row in range(3):
        alone = run(family, first_state(family, (row,)), decoder, schedule, policy, temperature=temperature)
        assert answer(together, row) == answer(alone)
        assert answer(shuffled, (2, 0, 1).index(row)) == answer(alone)
        assert together.rows_computed(row) == alone.rows_computed(0)


def assert_refreshed_cache_equals_none(family: str, decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> None:
    """A cache that recomputes everything at every step is no cache."""
    fresh = replace(policy, refresh=1)  # type: ignore[call-arg]
    plain = run(family, first_state(family), decoder, schedule, CACHES.make("none"))
    cached = run(family, first_state(family), decoder, schedule, fresh)
    assert [answer(plain, row) for row in range(3)] == [answer(cached, row) for row in range(3)]


def assert_exact_cache_equals_none(decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> None:
    """What calls itself exact equals no cache on a block-causal model."""
    assert policy.exact
    options = {"attention": "block_causal"}
    plain = run("llada", first_state("llada"), decoder, schedule, CACHES.make("none"), **options)
    cached = run("llada", first_state("llada"), decoder, schedule, policy, **options)
    assert [answer(plain, row) for row in range(3)] == [answer(cached, row) for row in range(3)]


def assert_early_stop_keeps_the_text(family: str, decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> None:
    """Stopping at a settled end token gives the text of the full run up to that token, with no more forwards."""
    end_ids = model(family).facts.end_ids
    full = run(family, first_state(family), decoder, schedule, policy)
    stopped = run(family, first_state(family), decoder, schedule, policy, stop="tail")
    for row in range(3):
        (long, long_nfe), (short, short_nfe) = answer(full, row), answer(stopped, row)
        assert useful(short, end_ids) == useful(long, end_ids)
        assert short_nfe <= long_nfe


def assert_decoder_contract(decoder: Decoder) -> None:
    """Everything a new decoder has to keep, over every schedule and cache it goes with, on both model families."""
    accepted = list(compositions([decoder]))
    assert accepted, "the decoder goes with no schedule and cache at all"
    for number, (method, schedule, policy) in enumerate(accepted):
        family = ("llada", "dream")[number % 2]
        assert_steps_keep_the_invariants(family, method, schedule, policy)
        assert_batch_equals_alone(family, method, schedule, policy)
        assert_early_stop_keeps_the_text(family, method, schedule, policy)
        if hasattr(policy, "refresh"):
            assert_refreshed_cache_equals_none(family, method, schedule, policy)
