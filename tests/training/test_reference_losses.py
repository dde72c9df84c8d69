"""The SFT loss against values recorded from the published training code, with its noise."""

import json
from pathlib import Path

import pytest
import torch

from unmask.models.checkpoints import load_checkpoint
from unmask.training.corruption import CleanBatch, masked_batch
from unmask.training.objectives import MaskedCrossEntropy

DATA = Path(__file__).parents[1] / "data"
GRADIENTS = {
    "model.transformer.wte.weight": "embedding.weight",
    "model.transformer.blocks.0.q_proj.weight": "blocks.0.query.weight",
    "model.transformer.blocks.2.up_proj.weight": "blocks.2.up.weight",
    "model.transformer.ff_out.weight": "head.weight",
}


@pytest.mark.parametrize("case", ["a", "b"])
def test_loss_and_gradients_are_those_of_the_published_code(case: str) -> None:
    reference = json.loads((DATA / "losses" / "llada_sft.json").read_text())
    recorded, mask_id = reference["cases"][case], reference["mask_id"]
    tokens, noisy = torch.tensor(recorded["input_ids"]), torch.tensor(recorded["noisy"])
    starts = torch.tensor(recorded["prompt_lengths"])
    answer = torch.arange(tokens.shape[1]) >= starts[:, None]
    clean = CleanBatch(tokens, answer.float(), starts, torch.ones_like(answer))
    batch = masked_batch(clean, noisy == mask_id, torch.tensor(recorded["p_mask"]), mask_id)
    assert torch.equal(batch.tokens, noisy)
    assert answer.sum(dim=1).tolist() == recorded["answer_lengths"]

    model = load_checkpoint(DATA / "reference" / "ckpt" / "llada", dtype="float32").backbone
    model.requires_grad_(True)
    loss = MaskedCrossEntropy(per="sample")(model, batch)
    loss.total.backward()

    assert loss.total.item() / loss.count == pytest.approx(recorded["loss"], rel=1e-4)
    assert loss.rows.sum().item() / loss.count == pytest.approx(recorded["loss"], rel=1e-4)
    assert loss.targets == len(recorded["token_loss"])
    parameters = dict(model.named_parameters())
    for name, norm in recorded["grad_norms"].items():
        gradient = parameters[GRADIENTS[name]].grad
        assert gradient is not None
        assert gradient.norm().item() / loss.count == pytest.approx(norm, rel=1e-3)
