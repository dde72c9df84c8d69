"""The invariants that every decoder, schedule and cache keeps, as plain functions (docs/structure.md lists them).

A new decoder's test calls `assert_decoder_contract(Name())`; the project's own tests run every function here over every
composition that `check_composition` accepts. Models are the reference checkpoints in float64, so that rounding decides
nothing.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, replace
from functools import cache

import torch

import unmask
from conftest import REFERENCE
from unmask.caches import CACHES, CachePolicy
from unmask.core.compose import check_composition
from unmask.core.denoise import Step, denoise
from unmask.core.metrics import useful
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Blocks, NextToken, Pipelined, Schedule, Sequential
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping, settled
from unmask.core.trajectory import Trajectory
from unmask.decoders import DECODERS, Decoder
from unmask.errors import CompositionError


def ready(name: str) -> str:
    """A spec of the method with its defaults; wrappers hold thresholds."""
    held = [field for field in fields(DECODERS[name]) if field.default is MISSING]  # type: ignore[arg-type]
    return f"{name}({', '.join(['threshold'] * len(held))})" if held else name


EVERY_DECODER = [ready(name) for name in sorted(DECODERS)]
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
    "threshold(threshold=0.7, strict=True, rank='margin')",
    "dynamic(threshold=0.7, steps=9)",
    "entropy-threshold(threshold=0.5)",
    "every-slot",
    "entropy-bound(gamma=0.5)",
    "entropy-bound(gamma=0.2, order='confidence')",
    "local-leap(anchor=0.8, relaxed=0.5, radius=3)",
    "klass(confidence=0.6, divergence=0.1)",
    "klass(confidence=0.5, divergence=0.2, history=1, steps=9, watch='window')",
    "dc-leap(commit=0.5, draft=0.6)",
    "dc-leap(commit=0.8, draft=0.3, far=True)",
    "dc-leap(commit=0.5, draft=1)",
    "wino(draft=0.3, verify=0.9)",
    "wino(draft=0.5, verify=0.8, shadows_see_each_other=False)",
    "leap(accept=0.9, early=0.3, candidate=0.05)",
    "leap(entropy(steps=9), early=0.2, candidate=0.05, mode='mutual', agree_all=True, max_extra=6, ahead=True)",
    "either(threshold(threshold=0.8), local-leap(anchor=0.7, relaxed=0.5))",
    "either(wino(draft=0.5), klass(confidence=0.6, divergence=0.1))",
    "either(wino(draft=0.5), leap(accept=0.9, early=0.3, candidate=0.05))",
    "edit(threshold(threshold=0.8), threshold=0.1)",
    "edit(dynamic(threshold=0.7, steps=9), threshold=0.2)",
    "prophet(low-confidence, early=4.0, middle=3.0, late=2.0)",
    "prophet(wino(draft=0.5), average='min', region=(2, 4), steps=9)",
    "lopa(threshold(threshold=0.8, strict=True), width=2)",
    "lopa(low-confidence(steps=9), width=1, score='margin', share=0.5, alpha=0.3)",
    "lopa(prophet(klass(confidence=0.6, divergence=0.1)), width=2)",
)
SCHEDULE_SPECS = (
    "whole",
    "sequential(block_length=8)",
    "sequential(block_length=5)",
    "sliding(length=6)",
    "pipelined(block_length=4, add=0.5, force=0.75)",
    "next-token",
)
CACHE_SPECS = (
    "none",
    "prefix",
    "dual",
    "prefix(refresh=2)",
    "dual(refresh=3)",
    "delayed(every=4)",
    "window(refresh=6)",
    "features(prompt_every=5, answer_every=3, share=0.3)",
    "finished-blocks",
)

PROMPTS = ([3, 14, 15, 9, 20, 6], [5, 35, 8], [9, 7, 9, 3, 2, 3, 8, 4, 6, 21, 40, 33])  # characters of both tokenizers
LENGTHS = (20, 13, 8)  # no multiple of the block lengths among them


@cache
def model(family: str, attention: str = "bidirectional") -> unmask.Model:
    pattern = {} if attention == "bidirectional" else {"attention": attention}
    pattern |= {"block_length": 4} if attention == "block_causal" else {}
    return unmask.load(REFERENCE / "ckpt" / family, device="cpu", dtype="float64", **pattern)  # type: ignore[arg-type]


def composes(decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):  # exact caches are approximate here, and run all the same
            check_composition(decoder, schedule, policy, needed_by(schedule))
    except CompositionError:
        return False
    return True


def needed_by(schedule: Schedule) -> str:
    """The attention of the model that a schedule is tried on."""
    return "causal" if isinstance(schedule, NextToken) else "bidirectional"


def compositions(decoders: Sequence[str | Decoder] = DECODER_SPECS) -> Iterator[tuple[Decoder, Schedule, CachePolicy]]:
    """Every accepted triple."""
    for decoder in map(DECODERS.make, decoders):
        for schedule in map(SCHEDULES.make, SCHEDULE_SPECS):
            for policy in map(CACHES.make, CACHE_SPECS):
                if composes(decoder, schedule, policy):
                    yield decoder, schedule, policy


def schedule_of(decoder: Decoder) -> Schedule:
    """A schedule of the list above that the decoder runs on: short blocks unless it asks for another kind."""
    kind = decoder.schedule or Sequential
    return next(schedule for schedule in map(SCHEDULES.make, SCHEDULE_SPECS) if isinstance(schedule, kind))


def refreshes(policy: CachePolicy) -> list[str]:
    """The fields that say how often a cache recomputes everything; at 1 it is no cache."""
    return [name for name in policy.__dataclass_fields__ if name in ("refresh", "every")]  # type: ignore[attr-defined]


def first_state(family: str, rows: Sequence[int] = (0, 1, 2), infill: bool = False) -> DenoisingState:
    """Ragged rows; row i draws from stream i wherever it stands. With `infill`, the last row has given text inside."""
    facts = model(family).facts
    canvases = [[*PROMPTS[row], *[None] * LENGTHS[row]] for row in rows]
    if infill:
        canvases[-1][-4:-2] = [11, 12]
    about = {"mask_id": facts.mask_id, "end_ids": facts.end_ids, "shift": facts.shift}
    return DenoisingState.from_canvas(canvases, **about, seeds=list(rows))  # type: ignore[arg-type]


def steps(
    family: str,
    state: DenoisingState,
    decoder: Decoder,
    schedule: Schedule,
    policy: CachePolicy,
    *,
    temperature: float = 0.0,
    stop: str = "none",
    attention: str | None = None,
) -> Iterator[Step]:
    sampling = Sampling(temperature=temperature, precision=torch.float64)
    network = model(family, attention or needed_by(schedule))
    state = replace(state, shift=network.facts.shift)
    return denoise(
        (network.in_blocks(schedule) if isinstance(schedule, Blocks) else network).predictor,
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


def masks_left(final: DenoisingState, schedule: Schedule) -> torch.Tensor:
    """Masked slots that ought to have been filled: all of them, but for blocks that an end token kept from opening."""
    if not isinstance(schedule, Pipelined):
        return final.masked
    ended = (torch.isin(final.tokens, torch.tensor(final.end_ids)) & final.answer).any(-1, keepdim=True)
    last = torch.where(final.exists & ~final.masked, final.slots, 0).amax(-1, keepdim=True)
    return final.masked & ~(ended & (final.slots > last))


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
        replaced = revoked & move.commit
        assert torch.equal(after.masked, before.masked & ~move.commit & ~step.filled | revoked & ~replaced)
        allowed = step.window.visible if decoder.overreaches else step.window.open
        assert not (move.commit & ~allowed).any()
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
        assert not masks_left(final, schedule).any(), "masks were left"
        assert torch.equal(final.tokens[0], last[row])
        assert trajectory.nfe(row) == seen[row] == int(final.step[0])
        assert decoder.idles or seen[row] <= int(state.masked[row].sum()), "more passes than slots"
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
    fresh = replace(policy, **dict.fromkeys(refreshes(policy), 1))  # type: ignore[arg-type]
    plain = run(family, first_state(family), decoder, schedule, CACHES.make("none"))
    cached = run(family, first_state(family), decoder, schedule, fresh)
    assert [answer(plain, row) for row in range(3)] == [answer(cached, row) for row in range(3)]


def assert_exact_cache_equals_none(family: str, decoder: Decoder, schedule: Schedule, policy: CachePolicy) -> None:
    """What calls itself exact equals no cache on a block-causal model, in tokens and steps, and saves rows if it keeps
    any."""
    assert policy.exact
    options = {"attention": "block_causal", "temperature": 0.4}
    for infill in (False, True):
        state = first_state(family, infill=infill)
        plain = run(family, state, decoder, schedule, CACHES.make("none"), **options)
        cached = run(family, state, decoder, schedule, policy, **options)
        for row in range(3):
            assert answer(plain, row) == answer(cached, row)
            assert torch.equal(plain.final(row).committed_at, cached.final(row).committed_at)
        if policy.keeps:
            saved = [plain.rows_computed(row) - cached.rows_computed(row) for row in range(3)]
            assert min(saved) >= 0 and max(saved) > 0, "nothing was kept"


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
        if refreshes(policy):
            assert_refreshed_cache_equals_none(family, method, schedule, policy)
