"""Which parts go together. Asked once before a run, with a reason for every refusal."""

import warnings
from typing import Any

from unmask.core.schedules import Blocks, NextToken, Schedule
from unmask.errors import CompositionError


def check_composition(decoder: Any, schedule: Schedule, cache: Any, attention: str = "bidirectional") -> None:
    """Refuse parts that make no sense together, and say what to use instead.

    Args:
        decoder: a `decoders.base.Decoder`.
        cache: a `caches.base.CachePolicy`.
        attention: the model's pattern, "bidirectional", "block_causal" or "causal".

    Raises:
        CompositionError: the pair is senseless; the message names a way out.
    """
    method, policy, plan = type(decoder).__name__, type(cache).__name__, type(schedule).__name__
    if decoder.clash:
        raise CompositionError(decoder.clash)
    if attention == "causal":
        _check_causal(decoder, schedule)
    elif isinstance(schedule, NextToken):
        raise CompositionError(
            f"{plan} cannot run on a {attention} model: it shows nothing from the open slot on, and such a model "
            'answers for a mask it is shown. Use schedule="sliding(length=1)" to decode it from left to right.'
        )
    if decoder.spreads and schedule.overlaps:
        raise CompositionError(
            f"{method} cannot spread a number of steps over {plan}: its windows overlap. Leave steps out, or use "
            'schedule="sequential".'
        )
    if decoder.revokes and schedule.grows:
        raise CompositionError(
            f"{method} cannot run on {plan}: it opens blocks by the share that is decided, and a revocation would turn "
            'that back. Use schedule="sequential".'
        )
    if decoder.branches > 1 and cache.fixed_canvas:
        raise CompositionError(
            f"{method} cannot run with {policy}: its candidate canvases come and go, the cache needs the same one at "
            'every step. Use cache="dual" or "none".'
        )
    if decoder.confined and not isinstance(schedule, decoder.schedule):
        raise CompositionError(
            f"{method} cannot run on the schedule {plan}: it works on {decoder.schedule.__name__} only. Leave the "
            "schedule out to get the right one."
        )
    if cache.fixed_canvas and decoder.reshapes:
        raise CompositionError(
            f"{method} cannot run with {policy}: the method adds slots, the cache needs the same slots at every step. "
            'Use cache="dual" or "none".'
        )
    if cache.fixed_canvas and schedule.grows:
        raise CompositionError(
            f"{plan} cannot run with {policy}: the schedule lets the canvas grow, the cache needs the same slots at "
            'every step. Use schedule="sequential" or another cache.'
        )
    if cache.blockwise and not isinstance(schedule, Blocks):
        raise CompositionError(
            f"{policy} cannot run on {plan}: it freezes blocks that are finished, and that schedule has none. Use "
            'schedule="sequential" or "pipelined", or another cache.'
        )
    if decoder.drafts and attention == "block_causal":
        warnings.warn(
            f"{method} shows drafts, and on a block-causal model no slot sees those in later blocks: they cost forward "
            "passes' rows and help little. Switch them off with draft=1.",
            stacklevel=2,
        )
    if cache.exact and cache.keeps and attention == "bidirectional":
        warnings.warn(
            f"{policy} is exact on block-causal models; on this bidirectional one its stored values are approximate",
            stacklevel=2,
        )


def _check_causal(decoder: Any, schedule: Schedule) -> None:
    """A causal model knows what comes next and nothing about masks."""
    method, plan = type(decoder).__name__, type(schedule).__name__
    if decoder.spreads or decoder.overreaches or decoder.branches > 1 or not decoder.shows_plainly:
        raise CompositionError(
            f"{method} cannot run on a causal model: it decides one slot at a time, and has never been shown masks "
            'or drafts. Leave the decoder out, or use preset="autoregressive".'
        )
    if not isinstance(schedule, NextToken):
        raise CompositionError(
            f"{plan} cannot run on a causal model: its rows speak for the next slot and for no later one. Leave the "
            'schedule out, or use schedule="next-token".'
        )
