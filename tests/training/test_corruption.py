import pytest
import torch

from training.helpers import MASK, clean_batch
from unmask.training.corruption import BlockMask, Corruption, Mixed, RandomMask, stratified_ratios

EVERY = [RandomMask(MASK), BlockMask(MASK, block_length=8), Mixed(RandomMask(MASK), BlockMask(MASK, block_length=8))]


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
    """The expected weight of a slot is its share of the row: corruption does not favour any block."""
    clean = clean_batch(rows=64, length=29)
    total = torch.zeros(29)
    for seed in range(150):
        total += corruption(clean, generator(seed)).weights.mean(dim=0)
    assert torch.allclose(total[5:] / 150, torch.full((24,), 1 / 24), rtol=0.15)


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
            return (
                batch
                if self.masks
                else type(batch)(clean.tokens, ~batch.masked, clean.tokens, batch.weights, batch.exists)
            )

    batch = Mixed(All(True), All(False))(clean_batch(), generator())
    assert (batch.tokens == MASK).any(dim=1).sum() == 3
