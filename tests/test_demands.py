"""What users of such tools complain about, each with its whole kind. Numbers refer to the cases of docs/compat.md.

T1 batches, T2 the mask as favourite, T3 greedy and seeds, T4 stop at the end token, T5 an end token may not jump the
queue, T8 any length, any number of steps, guidance without a mask.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import contract
import unmask
from fakes import FunctionPredictor, ScriptedPredictor
from unmask.caches import CACHES
from unmask.core.denoise import denoise
from unmask.core.sampling import Noise, Sampling, draw
from unmask.core.schedules import SCHEDULES, Sequential, Whole
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.decoders import DECODERS
from unmask.models.guidance import Guided

MASK, END = 9, 8
EVERY_DECODER = contract.EVERY_DECODER


def fake(fn: object, **options: object) -> FunctionPredictor:
    return FunctionPredictor(fn, vocab_size=10, mask_id=MASK, end_ids=(END,), **options)  # type: ignore[arg-type]


def run(
    predictor: object,
    decoder: str = "threshold",
    schedule: str = "sequential(block_length=16)",
    cache: str = "none",
    prompts: list[list[int]] | None = None,
    length: int | list[int] = 8,
    temperature: float = 0.0,
    seeds: int | list[int] = 0,
    **stop: object,
) -> Trajectory:
    state = DenoisingState.start(prompts or [[0, 1]], length, mask_id=MASK, seeds=seeds)
    steps = denoise(
        predictor,  # type: ignore[arg-type]
        state,
        DECODERS.make(decoder),
        schedule=SCHEDULES.make(schedule),
        cache=CACHES.make(cache),
        sampling=Sampling(temperature=temperature),
        stop=Stopping(**stop),  # type: ignore[arg-type]
    )
    return Trajectory.collect(state, steps)


def answer(trajectory: Trajectory, row: int = 0) -> list[int]:
    return contract.answer(trajectory, row)[0]


# T1 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_t1_logits_of_a_padded_row_are_those_of_the_row_alone(family: str) -> None:
    facts = contract.model(family).facts
    prompts = ([3, 14, 15], [9, 7, 9, 3, 2, 3, 8])
    together = DenoisingState.start(prompts, 8, mask_id=facts.mask_id)
    steps = list(contract.steps(family, together, *parts("low-confidence", "whole", "none")))
    for row, prompt in enumerate(prompts):
        alone = DenoisingState.start([prompt], 8, mask_id=facts.mask_id)
        first = next(iter(contract.steps(family, alone, *parts("low-confidence", "whole", "none"))))
        ours = steps[0].prediction.logits[row]
        assert torch.allclose(ours, first.prediction.logits[0], atol=1e-10)


def parts(decoder: str, schedule: str, cache: str) -> tuple[object, ...]:
    return DECODERS.make(decoder), SCHEDULES.make(schedule), CACHES.make(cache)


@pytest.mark.parametrize("decoder", EVERY_DECODER)
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_t1_rows_of_any_lengths_decode_as_if_alone(decoder: str, cache: str) -> None:
    contract.assert_batch_equals_alone("llada", *parts(decoder, "sequential(block_length=8)", cache))  # type: ignore[arg-type]


def test_t1_generate_gives_the_same_answers_at_any_batch_size(llada: unmask.Model) -> None:
    prompts = ["12+3=?", "sort 4 1 3", "reverse sun", "7-5=?", "max of 1 9 3"]
    options = {"length": [20, 9, 13, 24, 16], "schedule": "sequential(block_length=8)"}
    answers = [
        [
            (one.tokens, one.nfe, one.rows_computed)
            for one in unmask.generate(llada, prompts, batch_size=size, **options)
        ]  # type: ignore[arg-type]
        for size in (1, 2, 5, None)
    ]
    assert all(other == answers[0] for other in answers)


# T2 ------------------------------------------------------------------------------------------------------------------


def loves_the_mask(tokens: Tensor) -> Tensor:
    logits = torch.zeros(*tokens.shape, 10)
    logits[..., MASK] = 10.0
    logits[..., 5] = 5.0
    return logits


@pytest.mark.parametrize("decoder", EVERY_DECODER)
@pytest.mark.parametrize("schedule", ["whole", "sequential(block_length=3)"])
@pytest.mark.parametrize("temperature", [0.0, 0.01])
def test_t2_a_model_whose_favourite_is_the_mask_answers_its_second_choice(
    decoder: str, schedule: str, temperature: float
) -> None:
    trajectory = run(fake(loves_the_mask), decoder, schedule, temperature=temperature)
    assert answer(trajectory) == [5] * 8
    assert trajectory.nfe(0) <= 8


def test_t2_forbidden_tokens_are_never_predicted() -> None:
    state = DenoisingState.start([[0]], 6, mask_id=MASK)
    steps = denoise(
        fake(loves_the_mask),
        state,
        DECODERS.make("threshold"),
        schedule=Whole(),
        cache=CACHES.make("none"),
        sampling=Sampling(forbid=(5, 0)),
        stop=Stopping("none"),
    )
    assert not {0, 5, MASK} & set(answer(Trajectory.collect(state, steps)))


# T3 ------------------------------------------------------------------------------------------------------------------


def test_t3_greedy_is_greedy() -> None:
    logits = torch.tensor([[[1.0, 0.9]]]).expand(1, 50, 2).clone()
    slots = torch.arange(50)[None]
    for seed in range(50):
        noise = Noise(torch.tensor([seed]), torch.tensor([seed]))
        assert (draw(logits, slots, noise, Sampling()) == 0).all()


def ten_equal(tokens: Tensor) -> Tensor:
    return torch.zeros(*tokens.shape, 10)


@pytest.mark.parametrize("decoder", EVERY_DECODER)
def test_t3_the_seed_decides_and_neighbours_do_not(decoder: str) -> None:
    texts = [answer(run(fake(ten_equal), decoder, length=16, temperature=1.0, seeds=seed)) for seed in (0, 1, 2, 3)]
    again = [answer(run(fake(ten_equal), decoder, length=16, temperature=1.0, seeds=seed)) for seed in (0, 1, 2, 3)]
    assert texts == again
    assert all(one != other for one, other in itertools.combinations(texts, 2))
    batch = run(fake(ten_equal), decoder, prompts=[[0, 1]] * 4, length=16, temperature=1.0, seeds=[3, 1, 0, 2])
    assert [answer(batch, row) for row in range(4)] == [texts[seed] for seed in (3, 1, 0, 2)]


def test_t3_one_seed_for_a_batch_gives_every_row_its_own_stream() -> None:
    batch = run(fake(ten_equal), prompts=[[0, 1]] * 3, length=16, temperature=1.0, seeds=5)
    alone = [answer(run(fake(ten_equal), length=16, temperature=1.0, seeds=seed)) for seed in (5, 6, 7)]
    assert [answer(batch, row) for row in range(3)] == alone


# T4 ------------------------------------------------------------------------------------------------------------------


def one_word(tokens: Tensor) -> Tensor:
    """Slot 2 (the first of the answer) says 5, all others the end token; both very sure."""
    logits = torch.zeros(*tokens.shape, 10)
    logits[..., END] = 20.0
    logits[:, 2, END], logits[:, 2, 5] = 0.0, 20.0
    return logits


def test_t4_one_block_is_enough_for_a_one_token_answer() -> None:
    stopped = run(fake(one_word), length=64)
    assert stopped.nfe(0) == 1
    full = run(fake(one_word), length=64, mode="none")
    assert full.nfe(0) == 4
    assert answer(stopped) == answer(full) == [5] + [END] * 63


@pytest.mark.parametrize("mode", ["tail", "block"])
@pytest.mark.parametrize("decoder", EVERY_DECODER)
def test_t4_stopping_never_costs_more_and_keeps_the_text(decoder: str, mode: str) -> None:
    schedule = "sequential(block_length=16)"
    stopped = run(fake(one_word), decoder, schedule, length=64, mode=mode)
    full = run(fake(one_word), decoder, schedule, length=64, mode="none")
    assert stopped.nfe(0) <= full.nfe(0)
    assert answer(stopped)[:2] == answer(full)[:2] == [5, END]


def test_t4_completion_says_stop_and_counts_one_useful_token(llada: unmask.Model) -> None:
    from dataclasses import replace

    eos = llada.facts.end_ids[0]

    def sure(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, llada.facts.vocab_size)
        logits[..., eos] = 20.0
        logits[:, 3, eos], logits[:, 3, 5] = 0.0, 20.0
        return logits

    predictor = FunctionPredictor(sure, vocab_size=64, mask_id=llada.facts.mask_id, end_ids=(eos,))
    model = replace(llada, predictor=predictor)
    (done,) = unmask.generate(model, [[0, 1, 2]], length=64, schedule="sequential(block_length=16)")
    assert (done.finish_reason, done.tokens, done.nfe, done.tpf) == ("stop", [5], 1, 2.0)
    (full,) = unmask.generate(model, [[0, 1, 2]], length=64, schedule="sequential(block_length=16)", stop="none")
    assert (full.text, full.finish_reason, full.nfe) == (done.text, "stop", 4)


# T5 ------------------------------------------------------------------------------------------------------------------


def eager_to_end(tokens: Tensor) -> Tensor:
    """Slots 6 and 9 love the end token, all others mildly like 3."""
    logits = torch.zeros(*tokens.shape, 10)
    logits[..., 3] = 6.0
    for slot in (6, 9):
        if slot < tokens.shape[1]:
            logits[:, slot, 3], logits[:, slot, END] = 0.0, 16.0
    return logits


@pytest.mark.parametrize("temperature", [0.0, 0.2])
@pytest.mark.parametrize(
    "decoder", ["low-confidence", "threshold(threshold=0.99)", "maskgit-plus", "factor", "entropy"]
)
def test_t5_an_end_token_waits_for_everything_to_its_left(decoder: str, temperature: float) -> None:
    for seed in range(5):
        held = run(
            fake(eager_to_end),
            decoder,
            "whole",
            length=10,
            temperature=temperature,
            seeds=seed,
            hold_end=True,
            mode="none",
        )
        for state in held.states():
            for slot in (6, 9):
                if not state.masked[0, slot] and state.tokens[0, slot] == END:
                    assert not state.masked[0, :slot].any()


def test_t5_without_the_option_the_surest_comes_first() -> None:
    free = run(fake(eager_to_end), "low-confidence", "whole", length=10, mode="none")
    assert int(free.slot[0]) == 6 and int(free.token[0]) == END


def test_t5_stop_is_safe_even_without_the_option() -> None:
    """An end token committed early closes nothing until its left side is committed."""
    stopped = run(fake(eager_to_end), "low-confidence", "whole", length=10)
    assert answer(stopped)[:5] == [3, 3, 3, 3, END]


# T8 ------------------------------------------------------------------------------------------------------------------


@given(length=st.integers(1, 40), block=st.integers(1, 45), steps=st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_t8_any_length_block_and_number_of_steps(length: int, block: int, steps: int) -> None:
    """Steps are spread over the blocks and sum up to the request where that is possible."""
    trajectory = run(
        fake(ten_equal),
        f"low-confidence(steps={steps})",
        f"sequential(block_length={block})",
        length=length,
        mode="none",
    )
    blocks = -(-length // block)
    assert len(answer(trajectory)) == length and MASK not in answer(trajectory)
    nfe = trajectory.nfe(0)
    assert max(blocks, 1) <= nfe <= length
    if blocks <= steps <= length and length % block == 0:
        assert nfe == steps
    elif steps >= length:
        assert nfe == length


def test_t8_ten_steps_over_four_blocks() -> None:
    trajectory = run(fake(ten_equal), "low-confidence(steps=10)", "sequential(block_length=4)", length=16, mode="none")
    counts = [int((trajectory.step == step).sum()) for step in range(trajectory.nfe(0))]
    assert trajectory.nfe(0) == 10 and sum(counts) == 16
    per_block = [counts[:3], counts[3:5], counts[5:8], counts[8:]]
    assert per_block == [[2, 1, 1], [2, 2], [2, 1, 1], [2, 2]]


def test_t8_length_ten_in_blocks_of_four_has_a_short_last_block() -> None:
    trajectory = run(fake(ten_equal), "low-confidence", "sequential(block_length=4)", length=10, mode="none")
    assert trajectory.nfe(0) == 10
    assert sorted(trajectory.slot[:4].tolist()) == [2, 3, 4, 5] and sorted(trajectory.slot[8:].tolist()) == [10, 11]


def test_t8_guidance_needs_no_attention_mask_and_zero_is_off(llada: unmask.Model) -> None:
    prompts = ["12+3=?", "sort 3 1 2 please"]
    plain, zero, strong = (
        unmask.generate(llada, prompts, length=16, guidance=scale, schedule="sequential(block_length=8)")
        for scale in (0.0, 0.0, 1.5)
    )
    assert [one.tokens for one in plain] == [one.tokens for one in zero]
    assert [one.tokens for one in plain] != [one.tokens for one in strong]
    assert strong[0].rows_computed % 2 == 0


def test_t8_guidance_scale_zero_equals_no_guidance_and_equal_passes_change_nothing() -> None:
    predictor = contract.model("llada").predictor
    state = contract.first_state("llada")
    for inner, scale in ((predictor, 0.0), (ScriptedPredictor([{7: (3, 0.8)}], vocab_size=64, mask_id=56), 3.0)):
        steps = [
            list(
                denoise(
                    one,  # type: ignore[arg-type]
                    state,
                    DECODERS.make("threshold"),
                    schedule=Sequential(8),
                    cache=CACHES.make("dual"),
                    sampling=Sampling(precision=torch.float64),
                    stop=Stopping("none"),
                )
            )
            for one in (inner, Guided(inner, scale))  # type: ignore[arg-type]
        ]
        plain, guided = (Trajectory.collect(state, iter(one)) for one in steps)
        assert torch.equal(plain.token, guided.token) and torch.equal(plain.slot, guided.slot)
        assert guided.rows_computed(0) == 2 * plain.rows_computed(0)
