"""Causal models: decoded from left to right, token for token as a plain loop does it, with one row per step."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import contract
import unmask
from unmask.core.sampling import Noise, Sampling, draw
from unmask.errors import CompositionError, RequestError
from unmask.generation import Completion, Recipe, complete, start_state
from unmask.models.predictor import BackbonePredictor
from unmask.models.tiny import tiny_backbone, tiny_facts

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 1], [2, 20], [11, 3, 5, 5]]
LENGTHS = [9, 14, 5, 11]


def causal_model(seed: int = 3, **facts: object) -> unmask.Model:
    """A random causal model; no token ends an answer unless told otherwise."""
    backbone = tiny_backbone(seed, attention="causal", num_layers=3).double()
    about = tiny_facts(backbone, **{"shift": 1, "end_ids": ()} | facts)
    return unmask.Model(
        BackbonePredictor(backbone, about), about, contract.model("llada").text, "tiny", torch.device("cpu")
    )


def plain_loop(
    model: unmask.Model, prompt: Sequence[int], length: int, sampling: Sampling | None = None, seed: int = 0
) -> list[int]:
    """Another implementation: the whole text through the whole network for every token, nothing kept."""
    ids = list(prompt)
    for step in range(length):
        size = len(ids)
        sees = torch.ones(1, size, size, dtype=torch.bool).tril()
        with torch.no_grad():
            logits = model.predictor.backbone(torch.tensor([ids]), None, sees)[:, -1:]  # type: ignore[attr-defined]
        logits[..., model.facts.mask_id] = float("-inf")
        noise = Noise(torch.tensor([seed]), torch.tensor([step]))
        ids.append(int(draw(logits, torch.tensor([[size]]), noise, sampling or Sampling())))
        if ids[-1] in model.facts.end_ids:
            break
    return ids[len(prompt) :]


def decoded(model: unmask.Model, rows: Sequence[int] = range(4), **options: object) -> list[Completion]:
    recipe = Recipe.of(facts=model.facts, **options)  # type: ignore[arg-type]
    state = start_state(model, [PROMPTS[row] for row in rows], [LENGTHS[row] for row in rows], list(rows))
    return complete(model, state, recipe)


def test_greedy_tokens_are_those_of_a_plain_loop_in_a_ragged_batch_and_alone() -> None:
    model = causal_model()
    together = decoded(model)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        assert together[row].tokens == plain_loop(model, prompt, length)
        assert together[row].tokens == decoded(model, [row])[0].tokens
    assert len({tuple(one.tokens[:4]) for one in together}) > 2, "the rows say different things"


def test_the_prompt_is_computed_once_and_then_one_row_a_token() -> None:
    model = causal_model()
    for prompt, length, answer in zip(PROMPTS, LENGTHS, decoded(model), strict=True):
        assert answer.nfe == length
        assert answer.rows_computed == len(prompt) + length - 1
    plain = decoded(model, cache="none")
    assert [one.tokens for one in plain] == [one.tokens for one in decoded(model)]
    assert plain[0].rows_computed == sum(range(3, 3 + 9))


def test_no_step_shows_a_mask() -> None:
    """A causal model has never seen one, so every slot that serves as a key holds a token."""
    model = causal_model()
    state = start_state(model, PROMPTS, LENGTHS)
    for step in unmask.generation.run(model, state, Recipe.of(facts=model.facts)):
        work = step.prediction.work
        assert not (work.visible & (step.canvas.tokens == model.facts.mask_id)).any()
        assert work.visible.gather(1, work.rows).all()


def test_sampling_draws_the_numbers_of_a_plain_loop() -> None:
    model, sampling = causal_model(), Sampling(temperature=0.9, top_k=12)
    answers = decoded(model, sampling=sampling)
    for row, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        assert answers[row].tokens == plain_loop(model, prompt, length, sampling, seed=row)
    assert answers[0].tokens != decoded(model)[0].tokens


def test_an_end_token_ends_the_row_at_once() -> None:
    end = plain_loop(causal_model(), PROMPTS[1], 14)[5]
    model = causal_model(end_ids=(end,))
    for row, answer in enumerate(decoded(model)):
        whole = plain_loop(model, PROMPTS[row], LENGTHS[row])
        assert answer.tokens == [token for token in whole if token != end]
        assert answer.nfe == len(whole)
    assert decoded(model)[1].finish_reason == "stop"


def test_given_text_inside_the_answer_is_read_and_kept() -> None:
    model = causal_model()
    canvas = [1, 2, 3, None, None, 9, 9, None, None]
    answer = complete(model, start_state(model, [canvas]), Recipe.of(facts=model.facts))[0]
    first = plain_loop(model, [1, 2, 3], 2)
    assert answer.canvas == [1, 2, 3, *first, 9, 9, *plain_loop(model, [1, 2, 3, *first, 9, 9], 2)]
    assert answer.rows_computed == 3 + 1 + 3 + 1  # the prompt, a token, then the other token with the given text


def test_a_causal_model_gets_the_right_parts_without_being_told() -> None:
    model = causal_model()
    parts = Recipe.of(facts=model.facts).specs()
    assert (parts["decoder"], parts["schedule"], parts["cache"]) == ("every-slot", "next-token", "finished-blocks")
    by_default = unmask.generate(model, PROMPTS[:1], length=6)[0]
    by_name = unmask.generate(model, PROMPTS[:1], length=6, preset="autoregressive")[0]
    assert by_default.tokens == by_name.tokens == plain_loop(model, PROMPTS[0], 6)
    assert by_default.rows_computed == by_name.rows_computed == 3 + 5


@pytest.mark.parametrize("decoder", ["threshold(threshold=0.99)", "low-confidence", "entropy-bound", "klass", "factor"])
def test_a_window_of_one_slot_leaves_methods_nothing_to_choose(decoder: str) -> None:
    model = causal_model()
    assert [one.tokens for one in decoded(model, decoder=decoder)] == [one.tokens for one in decoded(model)]


@pytest.mark.parametrize(
    "decoder",
    [
        "wino",
        "leap",
        "dc-leap",
        "lopa(threshold)",
        "prophet(threshold)",
        "low-confidence(steps=4)",
        "either(wino, klass)",
    ],
)
def test_methods_that_need_masks_or_drafts_are_refused(decoder: str) -> None:
    with pytest.raises(CompositionError, match="cannot run on a causal model: it decides one slot at a time"):
        Recipe.of(decoder, facts=causal_model().facts)


@pytest.mark.parametrize("schedule", ["whole", "sequential(block_length=1)", "sliding(length=1)", "pipelined"])
def test_schedules_that_show_masks_are_refused(schedule: str) -> None:
    with pytest.raises(CompositionError, match=r'cannot run on a causal model: .* use schedule="next-token"'):
        Recipe.of("threshold", schedule, facts=causal_model().facts)


@pytest.mark.parametrize("attention", ["bidirectional", "block_causal"])
def test_models_that_answer_for_masks_are_not_decoded_without(attention: str) -> None:
    facts = replace(causal_model().facts, attention=attention)
    with pytest.raises(CompositionError, match=f"NextToken cannot run on a {attention} model"):
        Recipe.of("threshold", "next-token", facts=facts)


def test_guidance_of_a_causal_model_is_refused() -> None:
    with pytest.raises(RequestError, match="causal model has never seen any"):
        causal_model().guided(1.0)


def test_a_causal_model_speaks_for_the_next_slot() -> None:
    with pytest.raises(ValueError, match="shift must be 1, got 0"):
        causal_model(shift=0)
    assert contract.model("llada", "causal").facts.shift == 1, "whatever the family of the checkpoint"
