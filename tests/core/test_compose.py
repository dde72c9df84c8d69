"""Pairs that make no sense are refused with a way out; all others are accepted without a word."""

import pytest

from unmask.caches import CACHES, CachePolicy
from unmask.core.compose import check_composition
from unmask.core.schedules import SCHEDULES, Schedule, Sequential, Whole
from unmask.decoders import DECODERS, Decoder
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


def test_every_part_of_the_package_goes_with_every_other() -> None:
    for decoder in DECODERS.values():
        for schedule in SCHEDULES.values():
            for cache in CACHES.values():
                check_composition(decoder(), schedule(), cache())


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


def test_a_growing_schedule_on_a_bidirectional_model_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="Growing is meant for block-causal models"):
        check_composition(Decoder(), Growing(), CachePolicy())
    check_composition(Decoder(), Growing(), CachePolicy(), "block_causal")
