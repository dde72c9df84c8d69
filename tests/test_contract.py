"""The invariants of tests/contract.py over every decoder x schedule x cache that composes, on both families."""

import pytest

import contract
from unmask.caches import CACHES, CachePolicy
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.decoders import DECODERS, Decoder

ALL = list(contract.compositions())
FAST = [triple for number, triple in enumerate(ALL) if number % 15 == 0]
FAMILIES = ("llada", "dream")


def named(triple: tuple[Decoder, Schedule, CachePolicy]) -> str:
    return "-".join(type(part).__name__ for part in triple)


def each(check: object) -> object:
    """Every triple, a spread of them in the fast set."""
    return pytest.mark.parametrize(
        ("family", "triple"),
        [
            pytest.param(
                FAMILIES[number % 2],
                triple,
                id=f"{FAMILIES[number % 2]}-{number}-{named(triple)}",
                marks=[] if triple in FAST else [pytest.mark.slow],
            )
            for number, triple in enumerate(ALL)
        ],
    )(check)


def test_every_registered_part_is_in_the_matrix() -> None:
    decoders = {type(triple[0]) for triple in ALL}
    assert decoders == set(DECODERS.values())
    assert {type(triple[1]) for triple in ALL} == set(SCHEDULES.values())
    assert {type(triple[2]) for triple in ALL} == set(CACHES.values())


@each
def test_steps_keep_the_invariants(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_steps_keep_the_invariants(family, *triple)


@each
def test_batch_equals_alone(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_batch_equals_alone(family, *triple)


@each
def test_early_stop_keeps_the_text(family: str, triple: tuple[Decoder, Schedule, CachePolicy]) -> None:
    contract.assert_early_stop_keeps_the_text(family, *triple)


@pytest.mark.parametrize("spec", contract.DECODER_SPECS)
def test_batch_equals_alone_when_sampling(spec: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)"), CACHES.make("none")
    contract.assert_batch_equals_alone("llada", *parts, temperature=0.8)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", ["threshold(threshold=0.7)", "low-confidence(steps=9)", "factor", "entropy(steps=9)"])
def test_refreshed_cache_equals_none(family: str, spec: str, cache: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)"), CACHES.make(cache)
    contract.assert_refreshed_cache_equals_none(family, *parts)


@pytest.mark.parametrize("cache", [name for name, policy in CACHES.items() if policy.exact])
def test_exact_cache_equals_none_on_a_block_causal_model(cache: str) -> None:
    parts = DECODERS.make("threshold"), SCHEDULES.make("sequential(block_length=4)"), CACHES.make(cache)
    contract.assert_exact_cache_equals_none(*parts)


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
