"""Next-token training: an honest loss, and a model that `generate` can decode."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import contract
import unmask
from training.helpers import END, MASK, VOCABULARY, clean_batch, tiny_config
from unmask.models.predictor import BackbonePredictor
from unmask.models.tiny import tiny_facts
from unmask.training.corruption import NextToken
from unmask.training.data import BucketedBatches, Example
from unmask.training.loop import RunSettings, Schedule, train
from unmask.training.objectives import MaskedCrossEntropy
from unmask.training.recipes.ar import NO_TAIL, ar
from unmask.training.recipes.sft import SFTOptions, fresh_model

TEXTS = [((3, 4, 30), (5, 6, 7, 8, 9, END)), ((4, 3, 30), (9, 9, 8, 7, END)), ((11, 30), (2, 4, 2, 4, 2, 5, 1, END))]


class Few:
    def chunk(self, index: int) -> list[Example]:
        return [Example(prompt, answer) for prompt, answer in TEXTS] * 4


def few_batches(batch_tokens: int = 96) -> BucketedBatches:
    return BucketedBatches(Few(), batch_tokens=batch_tokens, pad_id=END, seed=0, max_length=32, tail=NO_TAIL)


def causal_model(seed: int = 0) -> unmask.models.backbone.Backbone:
    model = fresh_model(tiny_config(attention="causal"), seed)
    with torch.no_grad():
        for block in model.blocks:  # layers start as the identity, which would see no neighbour
            for matrix in (block.attention_out, block.down):  # type: ignore[union-attr]
                matrix.weight.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(seed))  # type: ignore[union-attr]
    return model


def loss_of(model: unmask.models.backbone.Backbone, batch: object) -> tuple[float, int]:
    found = MaskedCrossEntropy(per="target", shift=1)(model, NextToken()(batch, torch.Generator()))  # type: ignore[arg-type]
    return float(found.total.detach()), found.count


def test_the_loss_is_the_plain_one_of_language_models() -> None:
    model, batch = causal_model(), clean_batch()
    size = batch.tokens.shape[1]
    logits = model(batch.tokens, None, torch.ones(6, size, size, dtype=torch.bool).tril())
    wanted = functional.cross_entropy(logits[:, 4:-1].flatten(0, 1), batch.tokens[:, 5:].flatten(), reduction="sum")
    total, count = loss_of(model, batch)
    assert total == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert count == 6 * (size - 5), "the prompt carries no loss"


def test_what_comes_later_changes_no_earlier_loss() -> None:
    """The text is clean, so a single row that saw its own target would give the answer away."""
    model, batch = causal_model(), clean_batch(rows=1)
    first = replace(batch, weights=batch.weights * (torch.arange(40) < 20))
    changed = replace(first, tokens=torch.where(torch.arange(40) < 20, batch.tokens, (batch.tokens + 7) % 30))
    assert loss_of(model, first) == pytest.approx(loss_of(model, changed), rel=1e-6)
    assert loss_of(model, first) != pytest.approx(loss_of(fresh_model(tiny_config(), 0), first), rel=1e-3)


def test_a_sum_over_parts_of_a_batch_is_that_of_the_whole() -> None:
    model, batch = causal_model(), clean_batch()
    parts = [
        replace(batch, tokens=batch.tokens[rows], weights=batch.weights[rows], answer_starts=batch.answer_starts[rows],
                exists=batch.exists[rows])
        for rows in (slice(0, 1), slice(1, 6))
    ]  # fmt: skip
    totals, counts = zip(*(loss_of(model, part) for part in parts), strict=True)
    assert (sum(totals), sum(counts)) == pytest.approx(loss_of(model, batch), rel=1e-5)


def test_batches_have_no_tail_behind_the_first_end_token() -> None:
    for batch in few_batches().take(3):
        masked = NextToken()(batch, torch.Generator())
        assert torch.equal(masked.tokens, batch.tokens), "nothing is hidden"
        for row, start in enumerate(batch.answer_starts.tolist()):
            targets = masked.targets[row][masked.masked[row]].tolist()
            prompt = tuple(batch.tokens[row, :start].tolist())
            assert targets == list(dict(TEXTS)[prompt])


def test_a_causal_twin_learns_a_few_texts_and_generate_says_them() -> None:
    model = fresh_model(tiny_config(width=32, feed_width=48), 0)
    settings = RunSettings(steps=100, schedule=Schedule(warmup_steps=5), precision="float32")
    run = ar(model, few_batches(), settings, options=SFTOptions(muon_rate=0.03, adam_rate=2e-2))
    assert model.config.attention == "causal"
    assert run.settings.facts["config"]["attention"] == "causal" and run.settings.facts["shift"] == 1
    last = list(train(run))[-1]
    assert last.loss < 0.05
    facts = tiny_facts(model, mask_id=MASK, end_ids=(END,), banned_ids=(MASK,), vocab_size=VOCABULARY, shift=1)
    twin = unmask.Model(
        BackbonePredictor(model, facts), facts, contract.model("llada").text, "twin", torch.device("cpu")
    )
    answers = unmask.generate(twin, [list(prompt) for prompt, _ in TEXTS], length=12)
    for (prompt, answer), said in zip(TEXTS, answers, strict=True):
        assert [*said.tokens, END] == list(answer)
        assert (said.finish_reason, said.nfe) == ("stop", len(answer))
        assert said.rows_computed == len(prompt) + len(answer) - 1
