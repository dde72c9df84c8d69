"""From prompts of any form to completions whose numbers agree with each other."""

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import Tensor

import unmask
from fakes import FunctionPredictor, ScriptedPredictor
from unmask.core.sampling import Sampling
from unmask.core.schedules import Sequential, Whole
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Trajectory
from unmask.decoders import Decoder
from unmask.decoders.quota import LowConfidence
from unmask.decoders.threshold import Threshold
from unmask.errors import CompositionError, RequestError, UnknownNameError
from unmask.generation import Model, Recipe, encode, start_state

EOS, EOT, MASK = 52, 55, 56  # of the reference checkpoint, which has a chat template and 64 tokens
SUM, CHAT = "12+3=?", [{"role": "user", "content": "12+3=?"}]
BLOCKS: dict[str, Any] = {"schedule": "sequential(block_length=4)"}


def speaking(model: Model, **options: Any) -> Model:
    """The checkpoint's text side with a predictor that says `5, 5, end` in every answer of a 3-slot prompt."""

    def say(tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 64)
        logits[..., EOS] = 20.0
        logits[:, 3:5, EOS], logits[:, 3:5, 5] = 0.0, 20.0
        return logits

    return replace(model, predictor=FunctionPredictor(say, vocab_size=64, mask_id=MASK, end_ids=(EOS, EOT)), **options)


def short_context(model: Model, length: int) -> Model:
    return replace(model, facts=replace(model.facts, max_length=length))


def base_model(model: Model) -> Model:
    """The same checkpoint without its chat template."""
    text = copy.copy(model.text)
    text.template = None
    return replace(model, text=text)


# Prompts -------------------------------------------------------------------------------------------------------------


def test_a_text_is_one_user_message(llada: Model) -> None:
    assert encode(llada, SUM) == encode(llada, CHAT) == llada.text.encode_chat(CHAT)


def test_a_text_is_plain_where_there_is_no_chat_template(llada: Model) -> None:
    assert encode(base_model(llada), SUM) == llada.text.encode(SUM) != encode(llada, SUM)


def test_a_chat_needs_a_template(llada: Model) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        encode(base_model(llada), CHAT)


def test_ids_are_taken_as_they_are(llada: Model) -> None:
    assert encode(llada, [0, 63, 5]) == [0, 63, 5]
    assert encode(llada, (1, None, 2)) == [1, None, 2]


def test_prompts_of_all_forms_are_answered_together_as_they_are_alone(llada: Model) -> None:
    prompts: list[Any] = [SUM, CHAT, [3, 14, 15], [3, None, 15, None, None, 9]]
    together = unmask.generate(llada, prompts, length=6, **BLOCKS)
    assert together[0].tokens == together[1].tokens
    for prompt, answer in zip(prompts, together, strict=True):
        (alone,) = unmask.generate(llada, [prompt], length=6, **BLOCKS)
        assert (answer.canvas, answer.text, answer.nfe) == (alone.canvas, alone.text, alone.nfe)
    assert [len(answer.canvas) for answer in together[2:]] == [9, 6]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "prompts must be a list of prompts, at least one"),
        ("12+3", "prompts must be a list of prompts, at least one"),
        ([""], "the prompt is empty; write what the model should answer"),
        (["1+1", " \n"], "the prompt is empty; write what the model should answer"),
        ([[]], "the prompt is empty; give a text, a list of messages or a list of token ids"),
        ([[1, 64]], r"token ids must be 0\.\.63 or None \(to fill\): got 64"),
        ([[-1]], r"token ids must be 0\.\.63 or None \(to fill\): got -1"),
        ([[{"role": "user"}]], 'message 0 needs the keys "role" and "content"'),
        ([[*CHAT, {"content": "x"}]], 'message 1 needs the keys "role" and "content"'),
    ],
)
def test_impossible_prompts_are_refused(llada: Model, prompts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        unmask.generate(llada, prompts, length=4)


# Lengths -------------------------------------------------------------------------------------------------------------


def test_every_prompt_may_have_its_own_length(llada: Model) -> None:
    answers = unmask.generate(llada, [[1, 2], [3], [4, 5, 6]], length=[3, 7, 1], stop="none", **BLOCKS)
    assert [len(answer.canvas) for answer in answers] == [5, 8, 4]


def test_a_canvas_to_fill_in_takes_no_length(llada: Model) -> None:
    state = start_state(llada, [[1, None, 2], [3]], length=[0, 4])
    assert state.exists.sum(-1).tolist() == [3, 5]


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, "length must be a number of tokens from 1 up: got length=0"),
        (-1, "length must be a number of tokens from 1 up: got length=-1"),
        ([4, 0], "length must be a number of tokens from 1 up: got length=0"),
        ([4], "need one length per prompt: got 1 lengths for 2 prompts"),
        ([4, 4, 4], "need one length per prompt: got 3 lengths for 2 prompts"),
    ],
)
def test_impossible_lengths_are_refused(llada: Model, length: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        unmask.generate(llada, [[1], [2]], length=length)


def test_a_prompt_that_fills_the_context_is_refused(llada: Model) -> None:
    short = short_context(llada, 8)
    message = r"prompt 1 has 8 tokens, but the model was trained on contexts of 8; shorten it to leave room"
    with pytest.raises(RequestError, match=message):
        start_state(short, [[1], [1] * 8], length=1)
    assert start_state(short, [[1] * 7], length=1).num_slots == 8


@pytest.mark.parametrize(("prompt", "length"), [([1] * 5, 4), ([1, *[None] * 8], 1)], ids=["answer", "canvas"])
def test_more_than_the_trained_context_is_a_warning(llada: Model, prompt: Any, length: int) -> None:
    short = short_context(llada, 8)
    with pytest.warns(UserWarning, match="prompt 0 and its answer take 9 tokens, more than the trained context of 8"):
        start_state(short, [prompt], length=length)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start_state(short, [prompt[:-1]], length=length)


# Batches and seeds ---------------------------------------------------------------------------------------------------


def shown(answers: list[unmask.Completion]) -> list[Any]:
    return [
        (one.text, one.tokens, one.canvas, one.nfe, one.tpf, one.rows_computed, one.finish_reason) for one in answers
    ]


MIXED: list[Any] = [SUM, [3, None, 15, None, None, 9], [7, 7], "9-4=?"]


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_batches_change_nothing_when_sampling_either(llada: Model, cache: str) -> None:
    options: dict[str, Any] = {"length": [5, 1, 9, 3], "temperature": 0.8, "seed": 3, "cache": cache, **BLOCKS}
    whole = shown(unmask.generate(llada, MIXED, **options))
    for size in (1, 3):
        assert shown(unmask.generate(llada, MIXED, batch_size=size, **options)) == whole


@pytest.mark.parametrize("size", [0, -2])
def test_a_batch_has_at_least_one_prompt(llada: Model, size: int) -> None:
    with pytest.raises(RequestError, match=f"batch_size must be at least 1, or None for all at once: got {size}"):
        unmask.generate(llada, [[1]], length=2, batch_size=size)


def answers_at(model: Model, seed: Any, prompts: int = 3) -> list[list[int]]:
    done = unmask.generate(model, [[1, 2]] * prompts, length=8, temperature=2.0, seed=seed, stop="none", **BLOCKS)
    return [one.tokens for one in done]


def test_row_i_draws_from_stream_seed_plus_i(llada: Model) -> None:
    first, second, third = answers_at(llada, 4)
    assert first != second != third != first
    assert answers_at(llada, [6, 5, 4]) == [third, second, first]
    assert answers_at(llada, 5, prompts=1) == [second]


def test_seeds_must_match_the_prompts(llada: Model) -> None:
    with pytest.raises(RequestError, match="need one seed per prompt: got 2 seeds for 3 prompts"):
        answers_at(llada, [1, 2])


def test_the_seed_does_not_matter_when_greedy(llada: Model) -> None:
    one, other = (unmask.generate(llada, [SUM], length=8, seed=seed)[0].canvas for seed in (0, 99))
    assert one == other


# Options -------------------------------------------------------------------------------------------------------------


def test_a_temperature_cannot_be_given_twice(llada: Model) -> None:
    with pytest.raises(RequestError, match="give the temperature inside sampling, or as temperature, not both"):
        unmask.generate(llada, [[1]], length=2, temperature=0.5, sampling=Sampling(temperature=0.5))
    one, other = (
        unmask.generate(llada, [[1, 2]], length=8, seed=1, **options)[0].tokens
        for options in ({"temperature": 1.5}, {"sampling": Sampling(temperature=1.5)})
    )
    assert one == other


def test_an_impossible_temperature_is_refused(llada: Model) -> None:
    with pytest.raises(RequestError, match="temperature must be a number from 0 up"):
        unmask.generate(llada, [[1]], length=2, temperature=-1.0)


def test_negative_guidance_is_refused_and_none_at_all_is_the_model_itself(llada: Model) -> None:
    with pytest.raises(RequestError, match="guidance must be a number from 0 up"):
        unmask.generate(llada, [[1]], length=2, guidance=-1.0)
    assert llada.guided(0.0) is llada


class InOneBlock(LowConfidence):
    schedule = Whole


def test_a_recipe_has_the_schedule_that_its_method_needs_or_blocks_of_32() -> None:
    assert Recipe.of(InOneBlock()).schedule == Whole()
    assert Recipe.of("threshold").schedule == Sequential(32)
    assert Recipe.of().decoder == Threshold(0.9)


def test_a_recipe_tells_its_parts_as_specs() -> None:
    recipe = Recipe.of(
        Threshold(0.8), Sequential(4), "dual(refresh=2)", sampling=Sampling(temperature=0.5), stop="block"
    )
    assert recipe.specs() == {
        "decoder": "threshold(threshold=0.8)",
        "schedule": "sequential(block_length=4)",
        "cache": "dual(refresh=2)",
        "sampling": "sampling(temperature=0.5)",
        "stop": "stop(mode='block')",
    }
    assert recipe.stop == Stopping("block")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"decoder": "treshold"}, UnknownNameError),
        ({"schedule": "sequential(block=4)"}, RequestError),
        ({"cache": "dual(refresh=0)"}, RequestError),
        ({"decoder": InOneBlock(), "schedule": "sequential"}, CompositionError),
        ({"length": 0}, RequestError),
        ({"guidance": float("nan")}, RequestError),
        ({"batch_size": 0}, RequestError),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(
    llada: Model, options: dict[str, Any], error: type[Exception]
) -> None:
    model = speaking(llada)
    with pytest.raises(error):
        unmask.generate(model, [[1, 2, 3]], **options)
    assert isinstance(model.predictor, FunctionPredictor) and not model.predictor.seen


# Completions ---------------------------------------------------------------------------------------------------------


def test_a_completion_ends_before_its_end_token(llada: Model) -> None:
    (done,) = unmask.generate(speaking(llada), [[1, 2, 3]], length=8, **BLOCKS)
    assert done.tokens == [5, 5] and done.text == llada.text.decode([5, 5])
    assert (done.finish_reason, done.nfe, done.tpf, done.rows_computed) == ("stop", 1, 3.0, 11)
    assert done.canvas == [1, 2, 3, 5, 5, *[EOS] * 6]


@pytest.mark.parametrize(("stop", "nfe"), [("tail", 1), ("block", 1), ("none", 2), (Stopping("none"), 2)])
def test_the_rule_of_stopping_is_a_name_or_an_object(llada: Model, stop: Any, nfe: int) -> None:
    (done,) = unmask.generate(speaking(llada), [[1, 2, 3]], length=8, stop=stop, **BLOCKS)
    assert (done.tokens, done.nfe) == ([5, 5], nfe)


def test_an_answer_without_an_end_token_uses_its_length_up(llada: Model) -> None:
    (done,) = unmask.generate(speaking(llada), [[1, 2, 3]], length=2, **BLOCKS)
    assert (done.tokens, done.finish_reason, done.tpf) == ([5, 5], "length", 2.0)


def test_an_answer_that_keeps_masks_is_unfinished(llada: Model) -> None:
    model = replace(llada, predictor=ScriptedPredictor([{}], vocab_size=64, mask_id=MASK, end_ids=(EOS,)))
    schedule = Sequential(4, block_steps=2)
    (done,) = unmask.generate(model, [[1, 2, 3]], length=4, decoder="low-confidence", schedule=schedule)
    assert (done.finish_reason, done.nfe, done.canvas.count(MASK)) == ("unfinished", 2, 2)


@pytest.mark.parametrize("prompts", [MIXED, [[1, 2, 3]]], ids=["mixed", "one"])
def test_a_completion_agrees_with_its_trajectory(llada: Model, prompts: list[Any]) -> None:
    answers = unmask.generate(llada, prompts, length=6, cache="dual", temperature=0.3, **BLOCKS)
    for done in answers:
        assert isinstance(done.trajectory, Trajectory)
        final = done.trajectory.final()
        assert done.trajectory.start.num_rows == 1
        assert (done.nfe, done.rows_computed) == (done.trajectory.nfe(0), done.trajectory.rows_computed(0))
        assert done.canvas == final.tokens[0][final.exists[0]].tolist()
        answer = final.tokens[0][final.answer[0]].tolist()
        assert done.tokens == answer[: len(done.tokens)]
        assert done.tpf == pytest.approx((len(done.tokens) + (done.finish_reason == "stop")) / done.nfe)
        assert done.trajectory.facts == {
            "model": llada.source,
            "decoder": "threshold",
            "schedule": "sequential(block_length=4)",
            "cache": "dual",
            "sampling": "sampling(temperature=0.3)",
            "stop": "stop",
        }


def test_a_record_with_views_has_what_every_step_showed_and_is_else_the_same(llada: Model) -> None:
    plain, seen = (unmask.generate(llada, MIXED, length=6, record=record, **BLOCKS) for record in (True, "views"))
    for one, other in zip(plain, seen, strict=True):
        assert one.trajectory is not None and other.trajectory is not None
        assert one.trajectory.views is None and other.trajectory.views is not None
        assert one.tokens == other.tokens and torch.equal(one.trajectory.slot, other.trajectory.slot)
        assert other.trajectory.views.fits(other.nfe, other.trajectory.start.num_slots)
    with pytest.raises((RequestError, TypeCheckError), match="record"):  # the latter where types are checked
        unmask.generate(llada, MIXED, length=6, record="all")  # type: ignore[arg-type]


def test_nothing_but_the_trajectory_is_missing_without_a_record(llada: Model) -> None:
    kept, bare = (unmask.generate(llada, MIXED, length=6, record=record, **BLOCKS) for record in (True, False))
    assert shown(kept) == shown(bare)
    assert all(done.trajectory is None for done in bare)


def test_seconds_end_when_the_row_does(llada: Model) -> None:
    early, late = unmask.generate(llada, [[1, 2, 3], [1, 2]], length=[1, 9], decoder="low-confidence", stop="none")
    assert 0.0 < early.seconds < late.seconds


def test_denoise_yields_the_steps_that_generate_takes(llada: Model) -> None:
    options: dict[str, Any] = {"length": 6, "temperature": 0.4, "seed": 2, "guidance": 0.5, **BLOCKS}
    answers = unmask.generate(llada, [SUM, [1, 2]], **options)
    seen: dict[int, Any] = {}
    for step in unmask.denoise(llada, [SUM, [1, 2]], **options):
        for place, row in enumerate(step.row_ids.tolist()):
            seen[row] = step.after.tokens[place][step.after.exists[place]].tolist()
    assert seen == {row: done.canvas for row, done in enumerate(answers)}


def test_guidance_computes_every_row_twice(llada: Model) -> None:
    plain, guided = (
        unmask.generate(llada, [SUM], length=4, decoder="low-confidence", stop="none", guidance=scale)[0]
        for scale in (0.0, 1.0)
    )
    assert guided.nfe == plain.nfe and guided.rows_computed == 2 * plain.rows_computed


# Filling in ----------------------------------------------------------------------------------------------------------


def test_a_canvas_with_text_behind_a_hole_is_told_whole(llada: Model) -> None:
    (done,) = unmask.generate(speaking(llada), [[1, 2, 3, None, None, 7, None]], **BLOCKS)
    assert done.canvas == [1, 2, 3, 5, 5, 7, EOS]
    assert done.tokens == [5, 5, EOS] and done.text == llada.text.decode([1, 2, 3, 5, 5, 7])
    assert (done.finish_reason, done.tpf) == ("length", 3 / done.nfe)


def test_pieces_of_text_are_kept_around_their_holes(models: dict[str, Model]) -> None:
    for model in models.values():
        (done,) = unmask.infill(model, [[2, "1+", 3, "=?", 1]], **BLOCKS)
        kept = model.text.encode("1+"), model.text.encode("=?")
        assert done.canvas[2:4] == kept[0] and done.canvas[7:9] == kept[1]
        assert len(done.canvas) == 10 and MASK not in done.canvas
        assert done.tokens == done.canvas[:2] + done.canvas[4:7] + done.canvas[9:]
        assert done.text == model.text.decode(done.canvas)


def test_the_text_is_whole_when_the_only_hole_is_at_its_end(llada: Model) -> None:
    (done,) = unmask.infill(llada, [["1+1", 3]], stop="none")
    assert done.text.startswith("1+1")


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["1+1"], "text 0 has no hole; put a number of tokens between its pieces"),
        ("1+1", "text 0 has no hole"),
        (["1+", 0], "text 0: a piece is a text or a number of tokens from 1 up: got 0"),
        (["1+", -3], "got -3"),
        (["1+", True], "got True"),
    ],
)
def test_impossible_pieces_are_refused(llada: Model, pieces: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        unmask.infill(llada, [pieces])


class TokenByToken(Decoder):
    """A method of somebody else, which is no dataclass."""

    def decide(self, state: Any, window: Any, prediction: Any, memory: Any) -> Any:
        return LowConfidence().decide(state, window, prediction, memory)


def test_a_method_that_is_no_dataclass_is_recorded_by_its_name(llada: Model) -> None:
    """It used to run to the end and fail there, when its fields were asked for."""
    (done,) = unmask.generate(llada, [[1, 2]], decoder=TokenByToken(), length=3, stop="none")
    assert done.nfe == 3 and done.trajectory is not None
    assert done.trajectory.facts["decoder"] == "TokenByToken"
