"""The random model is small, reproducible, and has an opinion."""

import pytest
import torch

from unmask.models.tiny import tiny_backbone, tiny_facts

torch.set_num_threads(1)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = tiny_backbone(3).state_dict()
    torch.manual_seed(2)
    other, different = tiny_backbone(3).state_dict(), tiny_backbone(4).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not any(torch.equal(one[name], different[name]) for name in one)
    torch.manual_seed(1)
    tiny_backbone()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("overrides", [{}, {"num_key_heads": 1, "qkv_bias": True}, {"tied": True}, {"vocab_size": 99}])
def test_any_shape_gives_confidences_that_are_spread_out(overrides: dict[str, int]) -> None:
    backbone = tiny_backbone(**overrides)
    facts = tiny_facts(backbone)
    assert sum(parameter.numel() for parameter in backbone.parameters()) < 20_000
    with torch.no_grad():
        confidence = backbone(torch.arange(20)[None]).softmax(dim=-1).amax(dim=-1)
    assert bool(confidence.isfinite().all()) and confidence.min() < 0.6 and confidence.max() > 0.6
    assert facts.vocab_size == backbone.config.vocab_size == facts.mask_id + 1
