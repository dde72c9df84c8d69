"""Losses against values recorded from the published training codes, with their noise."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.models.backbone import Backbone
from unmask.models.checkpoints import load_checkpoint
from unmask.training.corruption import CleanBatch, MaskedBatch, masked_batch, pair_of_halves
from unmask.training.objectives import CertaintyForcing, Distillation, MaskedCrossEntropy, VerifiedOrder

DATA = Path(__file__).parents[1] / "data"
GRADIENTS = {
    "model.transformer.wte.weight": "embedding.weight",
    "model.transformer.blocks.0.q_proj.weight": "blocks.0.query.weight",
    "model.transformer.blocks.2.up_proj.weight": "blocks.2.up.weight",
    "model.transformer.ff_out.weight": "head.weight",
    "model.embed_tokens.weight": "embedding.weight",
    "model.layers.0.self_attn.q_proj.weight": "blocks.0.query.weight",
    "model.layers.2.mlp.up_proj.weight": "blocks.2.up.weight",
    "lm_head.weight": "head.weight",
}


def recorded(name: str) -> dict[str, Any]:
    return json.loads((DATA / "losses" / f"{name}.json").read_text())  # type: ignore[no-any-return]


def trainable(family: str) -> Backbone:
    model = load_checkpoint(DATA / "reference" / "ckpt" / family, dtype="float32").backbone
    return model.requires_grad_(True)


DREAM_PADDING = 51  # the published embedding gives the row of its padding token no gradient


def assert_gradients(model: Backbone, count: int, norms: dict[str, float]) -> None:
    parameters = dict(model.named_parameters())
    if "model.embed_tokens.weight" in norms:
        assert model.embedding.weight.grad is not None
        model.embedding.weight.grad[DREAM_PADDING] = 0.0
    for name, norm in norms.items():
        gradient = parameters[GRADIENTS[name]].grad
        assert gradient is not None
        assert gradient.norm().item() / count == pytest.approx(norm, rel=1e-3)


def answers_of(tokens: torch.Tensor, starts: list[int]) -> CleanBatch:
    answer = torch.arange(tokens.shape[1]) >= torch.tensor(starts)[:, None]
    return CleanBatch(tokens, answer.float(), torch.tensor(starts), torch.ones_like(answer))


@pytest.mark.parametrize("case", ["a", "b"])
def test_fine_tuning_costs_what_the_published_code_says(case: str) -> None:
    reference = recorded("llada_sft")
    said, mask_id = reference["cases"][case], reference["mask_id"]
    tokens, noisy = torch.tensor(said["input_ids"]), torch.tensor(said["noisy"])
    clean = answers_of(tokens, said["prompt_lengths"])
    batch = masked_batch(clean, noisy == mask_id, torch.tensor(said["p_mask"]), mask_id)
    assert torch.equal(batch.tokens, noisy)
    assert clean.weights.sum(dim=1).int().tolist() == said["answer_lengths"]

    model = trainable("llada")
    loss = MaskedCrossEntropy(per="sample")(model, batch)
    loss.total.backward()

    assert loss.total.item() / loss.count == pytest.approx(said["loss"], rel=1e-4)
    assert loss.rows.sum().item() / loss.count == pytest.approx(said["loss"], rel=1e-4)
    assert loss.targets == len(said["token_loss"])
    assert_gradients(model, loss.count, said["grad_norms"])


D2F_CASES = [
    (family, name) for family in ("llada", "dream") for name in recorded(f"{family}_d2f_distillation")["cases"]
]


@pytest.mark.parametrize(("family", "case"), D2F_CASES)
def test_distillation_costs_what_the_published_code_says(family: str, case: str) -> None:
    reference = recorded(f"{family}_d2f_distillation")
    said, mask_id = reference["cases"][case], reference["mask_id"]
    tokens, noisy, ratios = (torch.tensor(said[name]) for name in ("input_ids", "noisy", "p_mask"))
    masked = noisy == mask_id
    starts = torch.tensor(said["question_length"])
    weights = torch.where(masked, 1.0 / ratios.clamp_min(1e-9), 0.0)
    batch = MaskedBatch(noisy, masked, tokens, weights, torch.ones_like(masked), starts)
    model, frozen = trainable(family), trainable(family)

    @contextmanager
    def teacher() -> Iterator[Backbone]:
        yield frozen

    objective = Distillation(
        teacher if said["self_align"] else None, said["block_size"], shift=1 if family == "dream" else 0
    )
    loss = objective(model, batch)
    loss.total.backward()
    assert loss.count == said["num_masked"]
    assert loss.total.item() / loss.count == pytest.approx(said["loss"], rel=1e-4)
    assert_gradients(model, loss.count, said["grad_norms"])
    assert all(parameter.grad is None for parameter in frozen.parameters()), "the teacher learns nothing"


@pytest.mark.parametrize("case", list(recorded("dparallel")["cases"]))
def test_certainty_forcing_costs_what_the_published_code_says(case: str) -> None:
    reference = recorded("dparallel")
    said, mask_id = reference["cases"][case], reference["mask_id"]
    tokens, noisy, other = (torch.tensor(said[name]) for name in ("input_ids", "noisy", "noisy_rev"))
    halves = [torch.tensor(said[name]).bool() for name in ("masked", "masked_rev")]
    later = (noisy == mask_id) & (other == mask_id)
    batch = pair_of_halves(
        answers_of(tokens, said["prompt_lengths"]), torch.stack(halves, 1).flatten(0, 1), later, mask_id
    )
    assert torch.equal(batch.tokens, torch.stack((noisy, other), 1).flatten(0, 1))
    model = trainable("llada")
    loss = CertaintyForcing(float(said["entropy_weight"]), float(said["temperature"]))(model, batch)
    loss.total.backward()
    assert loss.total.item() / loss.count == pytest.approx(said["loss"], rel=1e-4)
    assert_gradients(model, loss.count, said["grad_norms"])


def sample_of(reference: dict[str, Any], number: int, width: int) -> MaskedBatch:
    """One recorded training sample, padded with end tokens that everybody sees, as the published code does."""
    samples = reference["samples"]
    end = 52
    shown, labels = ([*samples[name][number]] for name in ("input_ids", "labels"))
    wanted = [*samples["target_mask"][number]]
    missing = width - len(shown)
    tokens, targets = (torch.tensor([[*row, *[end] * missing]]) for row in (shown, labels))
    chosen = torch.tensor([[*wanted, *[False] * missing]])
    masked = tokens == reference["mask_id"]
    starts = torch.tensor([samples["prompt_lengths"][number]])
    return MaskedBatch(tokens, masked, targets, chosen.float(), torch.ones_like(masked), starts)


@pytest.mark.parametrize("chosen", range(len(recorded("wino_plus")["loss_sets"])))
def test_the_verified_order_costs_what_the_published_code_says(chosen: int) -> None:
    reference = recorded("wino_plus")
    said = reference["loss_sets"][chosen]
    model = load_checkpoint(DATA / "reference" / "ckpt" / "llada", dtype="float32").backbone
    weights = {"unmask": said["w_unmask_loss"], "remask": said["w_remask_loss"]}
    assert said["w_ce_loss"] == 1.0
    objective = VerifiedOrder(
        **weights, shy=said["threshold_back"], bold=said["threshold"], block_length=said["block_size"]
    )
    compared = 0
    for number, values in enumerate(said["losses"]):
        batch = sample_of(reference, number, said["collator_max_length"])
        total = objective(model, batch).total.item()
        assert total == pytest.approx(values["total"], rel=1e-4, abs=1e-5)
        compared += values["num_unmask"] > 0 and values["num_remask"] > 0
    assert compared, "all three parts take part"
