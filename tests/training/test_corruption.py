from dataclasses import replace

import pytest
import torch

from training.helpers import MASK, clean_batch
from unmask.training.corruption import (
    BlockMask,
    Corruption,
    HalvedBlock,
    Mixed,
    MonotoneBlockMask,
    RandomMask,
    block_of,
    stratified_ratios,
)

EVERY = [
    RandomMask(MASK),
    BlockMask(MASK, block_length=8),
    Mixed(RandomMask(MASK), BlockMask(MASK, block_length=8)),
    MonotoneBlockMask(MASK, block_length=8),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_ratios_fill_their_range_evenly() -> None:
    ratios = stratified_ratios(50, 0.1, generator()).sort().values
    assert ratios.min() >= 0.1
    assert ratios.max() <= 1.0
    assert torch.allclose(ratios.diff(), torch.full((49,), 0.9 / 50), atol=1e-6)


@pytest.mark.parametrize("corruption", EVERY)
def test_the_prompt_is_never_masked_and_carries_no_loss(corruption: Corruption) -> None:
    clean = clean_batch()
    for seed in range(20):
        batch = corruption(clean, generator(seed))
        assert not batch.masked[:, :5].any()
        assert not batch.weights[:, :5].any()
        assert torch.equal(batch.tokens[:, :5], clean.tokens[:, :5])


@pytest.mark.parametrize("corruption", EVERY)
def test_masked_slots_show_the_mask_and_only_they_carry_loss(corruption: Corruption) -> None:
    clean = clean_batch()
    batch = corruption(clean, generator())
    assert torch.equal(batch.tokens, clean.tokens.masked_fill(batch.masked, MASK))
    assert torch.equal(batch.targets, clean.tokens)
    assert not batch.weights[~batch.masked].any()


@pytest.mark.parametrize("corruption", EVERY)
def test_the_same_noise_gives_the_same_batch(corruption: Corruption) -> None:
    one, other = corruption(clean_batch(), generator(3)), corruption(clean_batch(), generator(3))
    assert torch.equal(one.masked, other.masked)
    assert torch.equal(one.weights, other.weights)
    assert not torch.equal(one.masked, corruption(clean_batch(), generator(4)).masked)


@pytest.mark.parametrize("corruption", EVERY)
def test_a_slot_weighs_the_same_on_average_wherever_it_is(corruption: Corruption) -> None:
    """The expected weight is the same for all slots of a row: corruption does not favour any block."""
    clean = clean_batch(rows=64, length=29)
    total = torch.zeros(29)
    for seed in range(150):
        total += corruption(clean, generator(seed)).weights.mean(dim=0)
    assert torch.allclose(total[5:] / total[5:].mean(), torch.ones(24), rtol=0.15)


def test_block_masking_hides_everything_right_of_the_block_and_nothing_left_of_it() -> None:
    clean = clean_batch()
    batch = BlockMask(MASK, block_length=8)(clean, generator(1))
    blocks = (torch.arange(40) - 5).div(8, rounding_mode="floor")
    for row in range(6):
        scored = blocks[batch.weights[row] > 0].unique()
        assert len(scored) == 1
        assert batch.masked[row, blocks > scored].all()
        assert not batch.masked[row, blocks < scored].any()


def test_padding_is_never_masked() -> None:
    clean = clean_batch()
    clean.exists[:, 30:] = False
    clean.weights[:, 30:] = 0.0
    for corruption in EVERY:
        assert not corruption(clean, generator(2)).masked[:, 30:].any()


def test_mixed_corrupts_half_of_the_rows_either_way() -> None:
    class All:
        def __init__(self, masks: bool) -> None:
            self.masks = masks

        def __call__(self, clean, noise):  # type: ignore[no-untyped-def]
            batch = RandomMask(MASK, lowest=1.0)(clean, noise)
            return batch if self.masks else replace(batch, tokens=clean.tokens, masked=~batch.masked)

    batch = Mixed(All(True), All(False))(clean_batch(), generator())
    assert (batch.tokens == MASK).any(dim=1).sum() == 3


def test_blocks_are_counted_from_the_end_of_the_prompt() -> None:
    assert block_of(torch.tensor([2, 3]), 7, 2).tolist() == [[-1, -1, 0, 0, 1, 1, 2], [-1, -1, -1, 0, 0, 1, 1]]


def test_later_blocks_are_never_masked_more_thinly() -> None:
    corruption = MonotoneBlockMask(MASK, block_length=8)
    clean = clean_batch()
    starts = clean.answer_starts
    blocks = block_of(starts, clean.tokens.shape[1], 8)
    for seed in range(20):
        ratios = corruption.ratios(clean, blocks >= 0, generator(seed))
        answer = torch.where(blocks >= 0, ratios, 0.0)
        assert (answer.diff(dim=1) >= -1e-6).all()
        assert float(ratios.min()) >= 0.2 - 1e-6 and float(ratios.max()) <= 0.7 + 1e-6
        for row in range(len(starts)):
            for block in range(int(blocks[row].max()) + 1):
                assert len(ratios[row][blocks[row] == block].unique()) == 1, "one ratio per block"
        batch = corruption(clean, generator(seed))
        assert torch.allclose(
            batch.weights[batch.masked], 1.0 / corruption.ratios(clean, blocks >= 0, generator(seed))[batch.masked]
        )


def test_an_answer_of_one_block_has_one_ratio_in_the_range() -> None:
    ratios = MonotoneBlockMask(MASK, block_length=500).ratios(clean_batch(), torch.ones(6, 40).bool(), generator())
    assert ((ratios >= 0.2) & (ratios <= 0.7)).all()
    assert all(len(row.unique()) == 1 for row in ratios)


def test_slots_are_masked_as_often_as_their_ratio_says() -> None:
    clean = clean_batch()
    corruption = MonotoneBlockMask(MASK, block_length=8, lowest=0.5, highest=0.5)
    share = sum(float(corruption(clean, generator(seed)).masked[:, 5:].float().mean()) for seed in range(200)) / 200
    answer = float((torch.arange(clean.tokens.shape[1]) >= clean.answer_starts[:, None])[:, 5:].float().mean())
    assert share == pytest.approx(0.5 * answer, abs=0.02)


def test_two_halves_of_a_block_are_targets_exactly_once_each() -> None:
    clean = clean_batch()
    blocks = block_of(clean.answer_starts, clean.tokens.shape[1], 8)
    seen = set()
    for seed in range(20):
        batch = HalvedBlock(MASK, block_length=8)(clean, generator(seed))
        assert len(batch.tokens) == 2 * len(clean.tokens)
        targets = batch.weights > 0
        for row in range(len(clean.tokens)):
            first, second = targets[2 * row], targets[2 * row + 1]
            chosen = blocks[row][first | second].unique()
            assert len(chosen) == 1 and not (first & second).any()
            block = int(chosen)
            seen.add(block)
            assert torch.equal(first | second, blocks[row] == block), "the whole block is learned"
            for half in (2 * row, 2 * row + 1):
                assert batch.masked[half][blocks[row] > block].all(), "what comes later is masked"
                assert not batch.masked[half][blocks[row] < block].any(), "what came before is clean"
                assert float(batch.weights[half].sum()) in (0.0, pytest.approx(1.0))
    assert seen == set(range(int(blocks.max()) + 1)), "every block has its turn"
