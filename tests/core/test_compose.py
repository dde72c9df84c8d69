"""Pairs that make no sense are refused with a way out; all others are accepted without a word."""

import pytest

from unmask.caches import CACHES, CachePolicy
from unmask.caches.fast_dllm import NoCache
from unmask.caches.finished_blocks import FinishedBlocks
from unmask.core.compose import check_composition
from unmask.core.schedules import SCHEDULES, Blocks, NextToken, Pipelined, Schedule, Sequential, Sliding, Whole
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.errors import CompositionError


class Growing(Schedule):
    grows = True


class Finer(Sequential):
    pass


class InBlocks(Decoder):
    schedule = Sequential


class Shadowing(Decoder):
    reshapes = True


class Pinned(CachePolicy):
    fixed_canvas = True


class Exact(CachePolicy):
    exact = True


def test_a_method_without_special_needs_goes_with_every_schedule_and_cache() -> None:
    for schedule in SCHEDULES.values():
        for cache in CACHES.values():
            needs_blocks = cache.blockwise and not issubclass(schedule, Blocks)
            if not needs_blocks and not (cache.fixed_canvas and schedule.grows):
                attention = "causal" if schedule is NextToken else "block_causal"
                check_composition(Threshold(), schedule(), cache(), attention)


@pytest.mark.parametrize("schedule", [Sliding(), Pipelined()])
def test_steps_are_not_spread_over_windows_that_overlap(schedule: Schedule) -> None:
    with pytest.raises(CompositionError, match=r"LowConfidence cannot spread .* windows overlap. Leave steps out"):
        check_composition(LowConfidence(steps=4), schedule, NoCache())
    check_composition(LowConfidence(), schedule, NoCache())


def test_a_method_that_names_its_schedule_runs_on_no_other() -> None:
    with pytest.raises(
        CompositionError, match=r"InBlocks cannot run on the schedule Whole: it works on Sequential only"
    ):
        check_composition(InBlocks(), Whole(), CachePolicy())
    check_composition(InBlocks(), Sequential(), CachePolicy())
    check_composition(InBlocks(), Finer(), CachePolicy())


def test_a_method_that_adds_slots_does_not_go_with_a_cache_that_needs_the_same_slots() -> None:
    with pytest.raises(CompositionError, match=r'Shadowing cannot run with Pinned: .*Use cache="dual" or "none"'):
        check_composition(Shadowing(), Whole(), Pinned())
    check_composition(Shadowing(), Whole(), CachePolicy())
    check_composition(Decoder(), Whole(), Pinned())


def test_a_growing_schedule_does_not_go_with_a_cache_that_needs_the_same_slots() -> None:
    with pytest.raises(CompositionError, match=r'Growing cannot run with Pinned: .*Use schedule="sequential"'):
        check_composition(Decoder(), Growing(), Pinned(), "block_causal")


@pytest.mark.parametrize("schedule", [Whole(), Sliding()])
def test_a_cache_of_finished_blocks_needs_a_schedule_with_blocks(schedule: Schedule) -> None:
    with pytest.raises(CompositionError, match=r'FinishedBlocks cannot run on .* has none. Use schedule="sequential"'):
        check_composition(Threshold(), schedule, FinishedBlocks(), "block_causal")
    check_composition(Threshold(), Sequential(), FinishedBlocks(), "block_causal")
    check_composition(Threshold(), Pipelined(), FinishedBlocks(), "block_causal")


def test_an_exact_cache_on_a_bidirectional_model_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="Exact is exact on block-causal models"):
        check_composition(Decoder(), Growing(), Exact())
    check_composition(Decoder(), Growing(), Exact(), "block_causal")
    check_composition(Decoder(), Growing(), CachePolicy())


@pytest.mark.parametrize("spec", ["dc-leap(draft=0.98)", "prophet(dc-leap(draft=0.98))"])
def test_drafts_on_a_block_causal_model_are_a_warning(spec: str) -> None:
    with pytest.warns(UserWarning, match="no slot sees those in later blocks"):
        check_composition(DECODERS.make(spec), Sliding(), NoCache(), "block_causal")
    check_composition(DECODERS.make(spec), Sliding(), NoCache())
    check_composition(DECODERS.make(spec.replace("0.98", "1")), Sliding(), NoCache(), "block_causal")


ON_BLOCKS, BESIDE = "sequential(block_length=8)", "pipelined(block_length=8)"


@pytest.mark.parametrize(
    ("decoder", "schedule", "cache"),
    [
        *(
            ("dc-leap(draft=1)", "sliding", cache)
            for cache in ("window", "dual", "prefix", "delayed(since='start')", "features")
        ),
        ("leap(entropy-threshold)", ON_BLOCKS, "dual"),
        *(("leap", ON_BLOCKS, cache) for cache in ("prefix", "dual", "delayed", "window", "none")),
        *(("dc-leap(draft=1)", schedule, "finished-blocks") for schedule in (ON_BLOCKS, BESIDE)),
        *((f"leap({inner})", ON_BLOCKS, "dual") for inner in ("local-leap", "entropy-bound", "factor")),
        *(("either(wino, leap)", ON_BLOCKS, cache) for cache in ("none", "prefix", "dual", "window")),
        *(("wino", ON_BLOCKS, cache) for cache in ("prefix", "dual", "delayed", "finished-blocks")),
        *(("klass", ON_BLOCKS, cache) for cache in ("prefix", "dual", "delayed", "window", "features")),
        *((f"prophet({inner})", ON_BLOCKS, "dual") for inner in ("low-confidence", "wino", "leap", "klass")),
        *((f"lopa({inner})", BESIDE, "finished-blocks") for inner in ("threshold(strict=True)", "dynamic")),
        *((one, BESIDE, "finished-blocks") for one in ("entropy-bound", "local-leap", "entropy-threshold", "leap")),
        ("threshold", ON_BLOCKS, "features(prompt_every=999, answer_every=1)"),
    ],
)
def test_what_publications_combine_goes_together(decoder: str, schedule: str, cache: str) -> None:
    """Or is a natural thing to combine; on a block-causal model, so that exact caches are exact."""
    check_composition(DECODERS.make(decoder), SCHEDULES.make(schedule), CACHES.make(cache), "block_causal")


@pytest.mark.parametrize(
    ("decoder", "schedule", "cache"),
    [
        ("wino", ON_BLOCKS, "features"),  # that cache's layers know one canvas
        ("leap", ON_BLOCKS, "features"),
        ("either(threshold, wino)", ON_BLOCKS, "features"),
        ("wino", BESIDE, "finished-blocks"),  # a revocation in a block behind which others are open
        ("prophet(wino)", BESIDE, "none"),
        ("either(wino, leap)", ON_BLOCKS, "features"),
        ("leap(wino)", ON_BLOCKS, "none"),
        ("dc-leap", BESIDE, "finished-blocks"),
    ],
)
def test_what_would_be_wrong_together_is_refused(decoder: str, schedule: str, cache: str) -> None:
    with pytest.raises(CompositionError):
        check_composition(DECODERS.make(decoder), SCHEDULES.make(schedule), CACHES.make(cache), "block_causal")
