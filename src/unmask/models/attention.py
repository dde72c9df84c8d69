"""Who sees whom, and the kernel that computes it.

Shape letters: b rows of the batch, r queries, s keys, h heads, d head size.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


def rotary_table(
    positions: Int[Tensor, "b r"], head_size: int, theta: float
) -> tuple[Float[Tensor, "b 1 r d"], Float[Tensor, "b 1 r d"]]:
    """Cosines and sines of the rotate-half layout, float32, for any (also repeated) positions."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=positions.device) / head_size
    angles = positions[:, None, :, None].float() * (1.0 / theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "b h r d"], cosine: Float[Tensor, "#b 1 r d"], sine: Float[Tensor, "#b 1 r d"]
) -> Float[Tensor, "b h r d"]:
    """Apply rotary positions, in float32 at least, and return the dtype that came in."""
    wide = x if x.dtype == torch.float64 else x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cosine + torch.cat((-second, first), dim=-1) * sine).to(x.dtype)


def block_causal(query_blocks: Int[Tensor, "b r"], key_blocks: Int[Tensor, "b s"]) -> Bool[Tensor, "b r s"]:
    """True where the key's block is not later than the query's block."""
    return key_blocks[:, None, :] <= query_blocks[:, :, None]


def attention(
    q: Float[Tensor, "b h r d"],
    k: Float[Tensor, "b g s d"],
    v: Float[Tensor, "b g s d"],
    mask: Bool[Tensor, "b r s"] | None,
) -> Float[Tensor, "b h r d"]:
    """Scaled dot-product attention; a query that may see nothing gets zeros, never NaN.

    SDPA is the reference kernel. While gradients are recorded on a CPU the plain form is used instead: its backward
    pass is 1.3 to 1.5 times faster there at the lengths of the built-in model.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    seen = None if mask is None else mask[:, None]
    if torch.is_grad_enabled() and q.device.type == "cpu" and q.requires_grad:
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        if seen is not None:
            scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        mixed = scores.softmax(dim=-1) @ v
        return mixed if seen is None else mixed * seen.any(-1, keepdim=True)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
