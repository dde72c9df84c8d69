"""The invariants of tests/contract.py over every decoder x schedule x cache that composes, on both families.

The dearer checks run over a part of the triples in which every decoder meets every cache and every schedule, and every
schedule every cache; set COMPOSITIONS=all to run them over all.
"""

import os

import pytest

import contract
from unmask.caches import CACHES, CachePolicy
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.decoders import DECODERS, Decoder

ALL = list(contract.compositions())
FAST = {number for number in range(len(ALL)) if number % 25 == 0}
FAMILIES = ("llada", "dream")


def named(triple: tuple[Decoder, Schedule, CachePolicy]) -> str:
    return "-".join(type(part).__name__ for part in triple)


def pairs(triple: tuple[Decoder, Schedule, CachePolicy]) -> set[tuple[object, object]]:
    decoder, schedule, policy = triple
    return {(decoder, schedule), (decoder, policy), (schedule, policy)}


def covering() -> set[int]:
    """Numbers of triples in which every two parts that compose meet, found greedily."""
    met: set[tuple[object, object]] = set()
    chosen = set()
    for wanted in (3, 2, 1):  # triples that bring so many new pairs
        for number, triple in enumerate(ALL):
            if len(pairs(triple) - met) >= wanted:
                met |= pairs(triple)
                chosen.add(number)
    return chosen


COVERING = set(range(len(ALL))) if os.environ.get("COMPOSITIONS") == "all" else covering() | FAST


def each(numbers: set[int]) -> pytest.MarkDecorator:
    """These triples, a spread of them in the fast set."""
    return pytest.mark.parametrize(
        ("family", "triple"),
        [
            pytest.param(
                FAMILIES[number % 2],
                ALL[number],
                id=f"{FAMILIES[number % 2]}-{number}-{named(ALL[number])}",
                marks=[] if number in FAST else [pytest.mark.slow],
            )
            for number in sorted(numbers)
        ],
    )


def test_every_two_parts_that_compose_meet() -> None:
    met = {pair for number in COVERING for pair in pairs(ALL[number])}
    assert met == {pair for triple in ALL for pair in pairs(triple)}
    assert len(COVERING) < len(ALL) or "COMPOSITIONS" in os.environ


def test_every_registered_part_is_in_the_matrix() -> None:
    decoders = {type(triple[0]) for triple in ALL}
    assert decoders == set(DECODERS.values())
    assert {type(triple[1]) for triple in ALL} == set(SCHEDULES.values())
    assert {type(triple[2]) for triple in ALL} == set(CACHES.values())


@each(set(range(len(ALL))))
def test_steps_keep_the_invariants(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_steps_keep_the_invariants(family, *triple)


@each(COVERING)
def test_batch_equals_alone(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_batch_equals_alone(family, *triple)


@each(COVERING)
def test_early_stop_keeps_the_text(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_early_stop_keeps_the_text(family, *triple)


@pytest.mark.parametrize("spec", contract.DECODER_SPECS)
def test_batch_equals_alone_when_sampling(spec: str) -> None:
    decoder = DECODERS.make(spec)
    parts = decoder, contract.schedule_of(decoder), CACHES.make("none")
    contract.assert_batch_equals_alone("llada", *parts, temperature=0.8)


@pytest.mark.parametrize("cache", ["prefix", "dual", "delayed", "window"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["threshold(threshold=0.7)", "low-confidence(steps=9)", "factor", "entropy(steps=9)"])
def test_refreshed_cache_equals_none(family: str, spec: str, cache: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)"), CACHES.make(cache)
    contract.assert_refreshed_cache_equals_none(family, *parts)


BLOCKS = (
    "pipelined(block_length=4, add=0.5, force=0.75)",
    "pipelined(block_length=5, add=0.1, force=1.0, align='absolute')",
    "sequential(block_length=4)",
    "sequential(block_length=5, align='absolute')",
    "sequential(block_length=4, block_steps=2)",
)


@pytest.mark.parametrize("cache", [name for name, policy in CACHES.items() if policy.exact and policy.keeps])
@pytest.mark.parametrize("schedule", BLOCKS)
@pytest.mark.parametrize(
    "spec",
    [
        "threshold(threshold=0.6)",
        *(pytest.param(spec, marks=pytest.mark.slow) for spec in contract.DECODER_SPECS),
    ],
)
def test_exact_cache_equals_none_on_a_block_causal_model(spec: str, schedule: str, cache: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make(schedule), CACHES.make(cache)
    if not contract.composes(*parts):
        return
    for family in FAMILIES:
        contract.assert_exact_cache_equals_none(family, *parts)


@pytest.mark.parametrize("spec", ["threshold(threshold=0.7)", "low-confidence"])
def test_prefix_cache_is_exact_on_a_block_causal_model(spec: str) -> None:
    """Blocks of the schedule = blocks of the model: what lies left of the window sees nothing of it."""
    decoder, schedule = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=4)")
    options = {"attention": "block_causal"}
    runs = [
        contract.run("llada", contract.first_state("llada"), decoder, schedule, CACHES.make(cache), **options)
        for cache in ("none", "prefix", "dual")
    ]
    answers = [[contract.answer(one, row) for row in range(3)] for one in runs]
    assert answers[0] == answers[1] == answers[2]


def test_prefix_cache_is_approximate_on_a_bidirectional_model() -> None:
    """Filling the answer moves the prompt's keys, so the rows computed differ and the text may."""
    decoder, schedule = DECODERS.make("threshold(threshold=0.5)"), SCHEDULES.make("sequential(block_length=8)")
    plain, cached = (
        contract.run("llada", contract.first_state("llada"), decoder, schedule, CACHES.make(cache))
        for cache in ("none", "dual")
    )
    assert not CACHES["dual"].exact
    assert sum(cached.rows_computed(row) for row in range(3)) < sum(plain.rows_computed(row) for row in range(3))
