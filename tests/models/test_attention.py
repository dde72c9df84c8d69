"""Attention and rotary positions, against loops over single numbers."""

from math import cos, exp, sin, sqrt

import pytest
import torch
from torch import Tensor

from unmask.models.attention import attention, block_causal, rotary_table, rotate


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """One query, one key, one number at a time."""
    out, groups = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for row, head, query in (
        (b, h, r) for b in range(q.shape[0]) for h in range(q.shape[1]) for r in range(q.shape[2])
    ):
        keys = [key for key in range(k.shape[2]) if mask is None or bool(mask[row, query, key])]
        scale = sqrt(q.shape[3])
        weights = [exp(float(q[row, head, query] @ k[row, head // groups, key]) / scale) for key in keys]
        for key, weight in zip(keys, weights, strict=True):
            out[row, head, query] += weight / sum(weights) * v[row, head // groups, key]
    return out


def tensors(key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(2, 4, 3, 6), random(2, key_heads, 5, 6, seed=1), random(2, key_heads, 5, 6, seed=2)


MASK = torch.tensor(
    [
        [[1, 1, 1, 1, 1], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]],
        [[0, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]],
    ],
    dtype=torch.bool,
)


@pytest.mark.parametrize("learning", [False, True], ids=["decoding", "learning"])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, MASK], ids=["open", "masked"])
def test_attention_is_the_softmax_over_the_keys_a_query_may_see(
    learning: bool, key_heads: int, mask: Tensor | None
) -> None:
    q, k, v = tensors(key_heads)
    got = attention(q.requires_grad_(learning), k, v, mask)
    torch.testing.assert_close(got, plain_attention(q.detach(), k, v, mask), rtol=0, atol=1e-12)
    assert got.requires_grad == learning


@pytest.mark.parametrize("learning", [False, True], ids=["decoding", "learning"])
def test_a_query_that_may_see_nothing_gets_zeros(learning: bool) -> None:
    q, k, v = tensors(4)
    mask = MASK.clone()
    mask[0, 1] = False
    got = attention(q.requires_grad_(learning), k, v, mask)
    assert (got[0, :, 1] == 0).all()
    torch.testing.assert_close(got[1], plain_attention(q.detach(), k, v, MASK)[1], rtol=0, atol=1e-12)


def test_a_gradient_through_a_query_that_sees_nothing_is_a_number() -> None:
    q, k, v = tensors(4)
    mask = torch.zeros_like(MASK)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    attention(q, k, v, mask).sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_block_causal_sees_its_own_block_and_earlier_ones() -> None:
    queries, keys = torch.tensor([[0, 1, -1], [2, 2, 0]]), torch.tensor([[-1, 0, 0, 1], [0, 1, 2, 3]])
    seen = block_causal(queries, keys)
    for row in range(2):
        for query in range(3):
            for key in range(4):
                assert seen[row, query, key] == (keys[row, key] <= queries[row, query])


# Rotary positions ----------------------------------------------------------------------------------------------------


def rotated(x: Tensor, position: int, theta: float = 100.0) -> Tensor:
    cosine, sine = rotary_table(torch.tensor([[position]]), x.shape[-1], theta)
    return rotate(x[None, None, None], cosine, sine)[0, 0, 0]


@pytest.mark.parametrize("position", [0, 1, 7])
def test_pairs_half_a_head_apart_are_turned_by_their_own_angle(position: int) -> None:
    x = random(6).float()
    turned = rotated(x, position)
    for pair in range(3):
        angle = position / 100.0 ** (2 * pair / 6)
        first, second = float(x[pair]), float(x[pair + 3])
        assert float(turned[pair]) == pytest.approx(first * cos(angle) - second * sin(angle), abs=1e-6)
        assert float(turned[pair + 3]) == pytest.approx(second * cos(angle) + first * sin(angle), abs=1e-6)


def test_products_depend_on_the_distance_alone() -> None:
    q, k = random(8).float(), random(8, seed=1).float()
    near, far = (float(rotated(q, 5 + by) @ rotated(k, 2 + by)) for by in (0, 40))
    assert near == pytest.approx(far, abs=1e-5)
    assert float(rotated(q, 6) @ rotated(k, 2)) != pytest.approx(near, abs=1e-3)


def test_each_slot_has_the_position_it_is_given() -> None:
    """Shadow slots repeat positions, and rows of a batch may differ."""
    x = random(2, 1, 3, 4).float()
    positions = torch.tensor([[0, 5, 5], [9, 0, 1]])
    turned = rotate(x, *rotary_table(positions, 4, 100.0))
    for row in range(2):
        for slot in range(3):
            torch.testing.assert_close(turned[row, 0, slot], rotated(x[row, 0, slot], int(positions[row, slot])))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rotation_keeps_the_dtype_and_turns_in_float32_at_least(dtype: torch.dtype) -> None:
    x = random(1, 1, 1, 4).to(dtype)
    table = rotary_table(torch.tensor([[3]]), 4, 100.0)
    assert rotate(x, *table).dtype == dtype and table[0].dtype == torch.float32
    wide = torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(rotate(x, *table), rotate(x.to(wide), *table).to(dtype), rtol=0, atol=0)
