"""Draws and their noise. Statistical tests have fixed seeds, and bounds that chance passes once in 10 000 times."""

import zlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.core.sampling import Noise, Sampling, ban, draw, truncate
from unmask.errors import RequestError

GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64
WORD = 2**64
CHI_SQUARE = {1: 15.2, 3: 21.2, 5: 25.8, 15: 44.3}  # degrees of freedom: bound passed by chance once in 10 000


def noise(seed: int | list[int] = 0, step: int | list[int] = 0) -> Noise:
    seeds, steps = ([x] if isinstance(x, int) else x for x in (seed, step))
    return Noise(torch.tensor(seeds), torch.tensor(steps))


def chi_square(counts: Tensor, expected: Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def kept(probabilities: list[float], **options: Any) -> set[int]:
    logits = torch.tensor(probabilities, dtype=torch.float64).log()[None, None]
    return set(truncate(logits, Sampling(**options))[0, 0].isfinite().nonzero()[:, 0].tolist())


# Options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be a number from 0 up: got -0\.1"),
        ({"temperature": float("nan")}, "temperature must be a number from 0 up: got nan"),
        ({"temperature": float("inf")}, "temperature must be a number from 0 up: got inf"),
        ({"top_k": -1}, r"top_k must be 0 \(off\) or a number of tokens: got -1"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1: got 0\.0"),
        ({"top_p": 1.1}, r"top_p must be above 0 and at most 1: got 1\.1"),
        ({"top_p": float("nan")}, "top_p must be above 0 and at most 1: got nan"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sampling(**options)


def test_an_unknown_confidence_is_refused() -> None:
    """Set behind the back of the tests' type checker, which would refuse it first."""
    sampling = Sampling()
    object.__setattr__(sampling, "confidence", "sure")
    with pytest.raises(RequestError, match='confidence must be "raw" or "drawn": got "sure"'):
        sampling.__post_init__()


# The draw ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drawn_frequencies_are_the_tempered_softmax(temperature: float) -> None:
    logits = torch.tensor([1.0, 0.0, -0.5, 2.0, 0.3, -1.5])
    slots = torch.arange(20_000)[None]
    drawn = draw(logits.expand(1, 20_000, 6), slots, noise(7), Sampling(temperature=temperature))
    expected = 20_000 * (logits.double() / temperature).softmax(-1)
    assert chi_square(drawn[0].bincount(minlength=6), expected) < CHI_SQUARE[5]


@pytest.mark.parametrize("axis", ["step", "seed"])
def test_frequencies_over_steps_and_over_seeds_are_right_too(axis: str) -> None:
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    many = {axis: list(range(8_000)), ("seed" if axis == "step" else "step"): [3] * 8_000}
    drawn = draw(
        probabilities.log().expand(8_000, 1, 4),
        torch.full((8_000, 1), 5),
        noise(many["seed"], many["step"]),
        Sampling(temperature=1.0),
    )
    assert chi_square(drawn[:, 0].bincount(minlength=4), 8_000 * probabilities) < CHI_SQUARE[3]


@pytest.mark.parametrize(
    ("options", "allowed"), [({"top_k": 2}, [0.6, 0.4, 0.0, 0.0]), ({"top_p": 0.4}, [0.6, 0.4, 0, 0])]
)
def test_truncated_tokens_are_never_drawn_and_the_others_share_their_probability(
    options: dict[str, Any], allowed: list[float]
) -> None:
    logits = torch.tensor([0.36, 0.24, 0.22, 0.18]).log().expand(1, 10_000, 4)
    drawn = draw(logits, torch.arange(10_000)[None], noise(1), Sampling(temperature=1.0, **options))
    counts = drawn[0].bincount(minlength=4)
    assert counts[2:].sum() == 0
    assert chi_square(counts[:2], 10_000 * torch.tensor(allowed[:2])) < CHI_SQUARE[1]


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-30])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = torch.randn(2, 50, 11, generator=torch.Generator().manual_seed(0))
    slots = torch.arange(50).expand(2, 50)
    drawn = draw(logits, slots, noise([1, 2], [3, 4]), Sampling(temperature=temperature))
    assert torch.equal(drawn, logits.argmax(-1))


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert int(draw(torch.tensor([[[0.0, 2.0, 2.0, 1.0]]]), torch.tensor([[0]]), noise(), Sampling())) == 1


def test_a_ruled_out_token_is_never_drawn() -> None:
    logits = ban(torch.zeros(1, 5_000, 4), (2, 0))
    drawn = draw(logits, torch.arange(5_000)[None], noise(3), Sampling(temperature=5.0))
    assert set(drawn[0].tolist()) == {1, 3}


def test_the_smallest_and_largest_noise_do_not_draw_a_ruled_out_token() -> None:
    """A uniform number that rounds to 1 has infinite Gumbel noise, and the argmax of a NaN is that NaN."""
    slots = torch.tensor([[slot_that_draws(WORD - 1, width_token=2), slot_that_draws(0, width_token=2)]])
    logits = torch.tensor([0.0, 1.0, float("-inf")]).expand(1, 2, 3)
    assert not (draw(logits, slots, noise(), Sampling(temperature=1.0)) == 2).any()


def test_ban_works_in_place_and_may_have_nothing_to_do() -> None:
    logits = torch.zeros(1, 1, 3)
    assert ban(logits, ()) is logits and logits.isfinite().all()
    assert ban(logits, (1,)) is logits and logits.isneginf().tolist() == [[[False, True, False]]]


# Truncation --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 1e-9}, {1}),  # the best always stays
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 0}),  # the token that crosses the bound is kept
        ({"top_p": 0.71}, {1, 0, 2}),
        ({"top_p": 0.99}, {0, 1, 2, 3}),
        ({"top_p": 0.71, "top_k": 1}, {1}),
        ({"top_p": 0.41, "top_k": 3}, {1, 0}),
    ],
)
def test_truncation_keeps_exactly_these_tokens(options: dict[str, Any], expected: set[int]) -> None:
    assert kept([0.3, 0.4, 0.2, 0.1], **options) == expected


def test_a_total_of_exactly_top_p_is_enough() -> None:
    """The smallest set whose total reaches the bound; the published filter would keep one token more."""
    assert kept([0.25, 0.5, 0.125, 0.125], top_p=0.5) == {1}
    assert kept([0.25, 0.5, 0.125, 0.125], top_p=0.75) == {1, 0}


def test_top_p_comes_before_top_k() -> None:
    """The other way round, the best of two would hold 4/7 of what is left, which is more than a half."""
    assert kept([0.4, 0.3, 0.2, 0.1], top_p=0.5, top_k=2) == {0, 1}


def test_ties_at_the_top_k_bound_all_stay() -> None:
    assert kept([0.25, 0.25, 0.4, 0.1], top_k=2) == {0, 1, 2}


def test_ties_at_the_top_p_bound_go_to_the_lowest_id() -> None:
    assert kept([0.125, 0.25, 0.25, 0.25, 0.125], top_p=0.5) == {1, 2}


def test_a_bound_that_is_met_exactly_is_enough() -> None:
    assert kept([0.5, 0.25, 0.25], top_p=0.5) == {0}


def test_ruled_out_tokens_stay_out() -> None:
    assert kept([0.5, 0.0, 0.5], top_k=3) == {0, 2}
    assert kept([0.5, 0.0, 0.5], top_p=0.99) == {0, 2}


# Noise -------------------------------------------------------------------------------------------------------------


def mixed(word: int) -> int:
    word %= WORD
    word = (word ^ word >> 30) * MIX_1 % WORD
    word = (word ^ word >> 27) * MIX_2 % WORD
    return word ^ word >> 31


def unmixed(word: int) -> int:
    """The inverse of `mixed`."""
    word = word ^ word >> 31 ^ word >> 62
    word = word * pow(MIX_2, -1, WORD) % WORD
    word = word ^ word >> 27 ^ word >> 54
    word = word * pow(MIX_1, -1, WORD) % WORD
    return word ^ word >> 30 ^ word >> 60


def key_of(seed: int, stream: str, step: int) -> int:
    return mixed(mixed(seed * GOLDEN + zlib.crc32(stream.encode())) + step * GOLDEN)


def slot_that_draws(word: int, width_token: int | None = None, stream: str = "token") -> int:
    """A slot number, not a small one, whose key is the given word at seed 0 and step 0."""
    if width_token is not None:
        word = (unmixed(word) - width_token * GOLDEN) % WORD
    slot = (unmixed(word) - key_of(0, stream, 0)) * pow(GOLDEN, -1, WORD) % WORD
    return slot - WORD if slot >= WORD // 2 else slot


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from(["token", "order"])
)
@settings(max_examples=100, deadline=None)
def test_numbers_equal_a_plain_splitmix(seed: int, step: int, slot: int, stream: str) -> None:
    key = mixed(key_of(seed, stream, step) + slot * GOLDEN)
    at, where = noise(seed, step), torch.tensor([[slot]])
    assert float(at.uniform(stream, where)) == pytest.approx(key / WORD, abs=3e-16)
    wide = at.uniform(stream, where, 3)[0, 0].tolist()
    assert wide == pytest.approx([mixed(key + token * GOLDEN) / WORD for token in range(3)], abs=3e-16)


@pytest.mark.parametrize("word", [0, 1, WORD - 1, WORD - 2, WORD // 2])
def test_numbers_are_never_0_or_1(word: int) -> None:
    """Found by inverting the generator: the largest key used to round to exactly 1."""
    number = float(noise().uniform("order", torch.tensor([[slot_that_draws(word, stream="order")]])))
    assert 0.0 < number < 1.0
    assert number == pytest.approx(word / WORD, abs=3e-16)


def test_a_number_belongs_to_its_seed_step_and_slot_whatever_stands_beside_it() -> None:
    seeds, steps = [3, 8, 5], [0, 7, 2]
    slots = torch.tensor([[0, 4, 9], [1, 2, 3], [4, 5, 6]])
    together = noise(seeds, steps).uniform("token", slots, 5)
    for row in range(3):
        alone = noise(seeds[row], steps[row])
        assert torch.equal(alone.uniform("token", slots[row : row + 1], 5)[0], together[row])
        for place, slot in enumerate(slots[row].tolist()):
            assert torch.equal(alone.uniform("token", torch.tensor([[slot]]), 5)[0, 0], together[row, place])
    swapped = noise(seeds[::-1], steps[::-1]).uniform("token", slots.flip(0), 5)
    assert torch.equal(swapped.flip(0), together)
    assert torch.equal(noise(seeds, steps).uniform("token", slots, 2), together[..., :2])


def test_a_draw_of_some_slots_is_part_of_the_draw_of_all() -> None:
    logits = torch.zeros(2, 12, 9)
    slots = torch.arange(12).expand(2, 12)
    chosen, hot = torch.tensor([7, 2, 11]), Sampling(temperature=1.0)
    every = draw(logits, slots, noise([1, 2], [0, 3]), hot)
    assert torch.equal(draw(logits[:1, :3], chosen[None], noise(1, 0), hot)[0], every[0, chosen])
    assert torch.equal(draw(logits[:1, :3], chosen[None], noise(2, 3), hot)[0], every[1, chosen])


def test_streams_of_other_names_share_no_numbers() -> None:
    slots = torch.arange(2_000)[None]
    one, other = (noise(4, 2).uniform(stream, slots)[0] for stream in ("token", "order"))
    assert not set(one.tolist()) & set(other.tolist())
    assert abs(correlation(one, other)) < 0.09


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1])


def numbers(axis: str, base: int) -> Tensor:
    """2 000 numbers along one axis, everything else fixed."""
    along, flat = torch.arange(2_000) + base, torch.full((2_000,), 3)
    if axis == "slot":
        return noise(3, 3).uniform("token", along[None])[0]
    if axis == "token":
        return noise(3, 3).uniform("token", torch.tensor([[base]]), 2_000)[0, 0]
    seed, step = (along, flat) if axis == "seed" else (flat, along)
    return Noise(seed, step).uniform("token", flat[:, None])[:, 0]


@pytest.mark.parametrize("axis", ["slot", "token", "seed", "step"])
def test_numbers_are_spread_evenly_and_neighbours_do_not_know_each_other(axis: str) -> None:
    drawn = numbers(axis, 0)
    counts = (drawn * 16).long().bincount(minlength=16)
    assert chi_square(counts, torch.full((16,), 125.0)) < CHI_SQUARE[15]
    for lag in (1, 2, 16):
        assert abs(correlation(drawn[lag:], drawn[:-lag])) < 0.09  # four standard deviations
    assert abs(correlation((drawn[1:] - 0.5).abs(), (drawn[:-1] - 0.5).abs())) < 0.09


def test_a_seed_and_a_step_are_not_interchangeable() -> None:
    slots = torch.arange(200)[None]
    tables = [noise(seed, step).uniform("token", slots)[0] for seed in range(4) for step in range(4)]
    assert len({number for table in tables for number in table.tolist()}) == 16 * 200
