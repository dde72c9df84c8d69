"""Which parts go together. Asked once before a run, with a reason for every refusal."""

import warnings
from typing import Any

from unmask.core.schedules import Schedule
from unmask.errors import CompositionError


def check_composition(decoder: Any, schedule: Schedule, cache: Any, attention: str = "bidirectional") -> None:
    """Refuse parts that make no sense together, and say what to use instead.

    Args:
        decoder: a `decoders.base.Decoder`.
        cache: a `caches.base.CachePolicy`.
        attention: the model's pattern, "bidirectional" or "block_causal".

    Raises:
        CompositionError: the pair is senseless; the message names a way out.
    """
    method, policy, plan = type(decoder).__name__, type(cache).__name__, type(schedule).__name__
    if decoder.schedule is not None and not isinstance(schedule, decoder.schedule):
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
    if schedule.grows and attention == "bidirectional":
        warnings.warn(
            f"{plan} is meant for block-causal models; on this bidirectional one its cached values are approximate",
            stacklevel=2,
        )
