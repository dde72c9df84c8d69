import pytest
import torch

from training.helpers import MASK, copy_batches, tiny_config, tiny_model
from unmask.training.loop import RunSettings, TrainingError
from unmask.training.optimizers import Muon
from unmask.training.recipes.sft import fresh_model, sft, small_config


def test_the_default_model_has_the_sizes_of_the_builtin_one() -> None:
    config = small_config(1280)
    model = fresh_model(config, 0)
    assert 2.8e6 < sum(parameter.numel() for parameter in model.parameters()) < 3.0e6
    assert (config.width, config.num_layers, config.num_heads, config.feed_width) == (192, 6, 6, 512)


def test_every_layer_starts_as_the_identity() -> None:
    model = tiny_model()
    tokens = torch.arange(20).view(2, 10)
    assert torch.equal(model.hidden(tokens), model.norm(model.embed(tokens)))


def test_starting_weights_depend_on_the_seed_alone() -> None:
    one, again, other = tiny_model(3).state_dict(), tiny_model(3).state_dict(), tiny_model(4).state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_muon_moves_the_matrices_of_the_blocks_and_adam_everything_else() -> None:
    model = tiny_model()
    run = sft(model, copy_batches(), RunSettings(steps=1), mask_id=MASK)
    muon, adam = run.optimizers
    assert isinstance(muon, Muon)
    moved = [{id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in (muon, adam)]
    assert moved[0] | moved[1] == {id(parameter) for parameter in model.parameters()}
    assert not moved[0] & moved[1]
    assert id(model.embedding.weight) in moved[1]
    assert len(moved[0]) == 7 * 2


def test_block_causal_models_are_refused() -> None:
    model = fresh_model(tiny_config(attention="block_causal"), 0)
    with pytest.raises(TrainingError, match="bidirectional"):
        sft(model, copy_batches(), RunSettings(steps=1), mask_id=MASK)
