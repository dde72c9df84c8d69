"""Turns, clocks and counts of a benchmark, on predictors whose answers are known beforehand."""

import copy
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from fakes import FunctionPredictor
from unmask.bench import environment
from unmask.bench.contestants import Contestant, grid
from unmask.bench.runner import Row, batched, bench, num_ticks, rotated
from unmask.core.state import DenoisingState
from unmask.errors import CompositionError, RequestError, UnknownNameError
from unmask.evaluation.problems import EXACT, grade
from unmask.evaluation.tasks import Problem
from unmask.generation import Recipe, complete, start_state

PROMPT = "a" * 20


def every_call_a_second() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: float(next(ticks))


def fake(llada: unmask.Model, say: Callable[[Tensor], Tensor]) -> unmask.Model:
    """A model of the reference's vocabulary without a chat template, that says what a function says."""
    facts, text = llada.facts, copy.copy(llada.text)
    text.template = None
    predictor = FunctionPredictor(
        say, vocab_size=facts.vocab_size, mask_id=facts.mask_id, end_ids=facts.end_ids, banned_ids=facts.banned_ids
    )
    return unmask.Model(predictor, predictor.facts, text, "fake", torch.device("cpu"))


def reciter(llada: unmask.Model, answer: str, prompt: str = PROMPT) -> unmask.Model:
    """A model that is always equally sure of the same answer and of end tokens behind it."""
    start, tokens, end = len(prompt), llada.text.encode(answer), llada.facts.end_ids[0]

    def say(shown: Tensor) -> Tensor:
        wanted = torch.full_like(shown, end)
        room = wanted.shape[1] - start
        wanted[:, start : start + len(tokens)] = torch.tensor(tokens[:room])
        return 30.0 * torch.nn.functional.one_hot(wanted, llada.facts.vocab_size).double()

    return fake(llada, say)


def asked(*answers: str, task: str = EXACT) -> list[Problem]:
    return [Problem(task, PROMPT, answer, f"problem {number}") for number, answer in enumerate(answers)]


def by_method(rows: Iterator[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.method, []).append(row)
    return grouped


def test_speed_counts_neither_prompt_nor_end_token_nor_tail(llada: unmask.Model) -> None:
    """T9: 20 prompt tokens, 5 answer tokens and an end token, 32 slots, one second."""
    rows = by_method(bench(reciter(llada, "12345"), asked("12345"), length=32, clock=every_call_a_second()))
    assert list(rows) == ["1 token/step", "threshold 0.9"]
    for row in (rows["1 token/step"][0], rows["threshold 0.9"][0]):
        assert (row.prompt_tokens, row.answer, row.correct, row.finish_reason) == (20, "12345", True, "stop")
        assert (row.useful_tokens, row.decided_tokens, row.seconds, row.tokens_per_second) == (5, 6, 1.0, 5.0)
    assert (rows["1 token/step"][0].nfe, rows["1 token/step"][0].tpf) == (6, 1.0)
    assert (rows["threshold 0.9"][0].nfe, rows["threshold 0.9"][0].tpf) == (1, 6.0)
    assert rows["threshold 0.9"][0].rows_computed == 52
    assert rows["1 token/step"][0].rows_computed == 6 * 52


def test_an_answer_without_an_end_token_decides_only_its_useful_tokens(llada: unmask.Model) -> None:
    rows = by_method(bench(reciter(llada, "12345678"), asked("1234"), length=4, clock=every_call_a_second()))
    row = rows["threshold 0.9"][0]
    assert (row.answer, row.correct, row.finish_reason) == ("1234", True, "length")
    assert (row.useful_tokens, row.decided_tokens, row.tpf) == (4, 4, 4.0)


def test_the_baselines_come_first_and_once_even_if_asked_for(llada: unmask.Model) -> None:
    wanted = [Contestant("mine", "threshold"), Contestant("other", "factor"), *grid("table", 8)]
    rows = list(bench(reciter(llada, "1"), asked("1"), wanted, length=8))
    assert [(row.method, row.baseline) for row in rows] == [
        ("1 token/step", "A"),
        ("threshold 0.9", "B"),
        ("other", ""),
        ("2 tokens/step", ""),
        ("4 tokens/step", ""),
        ("8 tokens/step", ""),
        ("threshold 0.7", ""),
        ("threshold 0.5", ""),
    ]
    assert [row.decoder for row in rows[3:6]] == [f"low-confidence(steps={steps})" for steps in (4, 2, 1)]


def test_every_batch_is_answered_by_all_methods_before_the_next_and_another_one_goes_first(
    llada: unmask.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[int]]] = []

    def spy(model: unmask.Model, state: DenoisingState, recipe: Recipe, record: bool) -> object:
        calls.append((recipe.specs()["decoder"], state.seed.tolist()))
        return complete(model, state, recipe, record=record)

    monkeypatch.setattr("unmask.bench.runner.complete", spy)
    list(bench(reciter(llada, "1"), asked("1", "2"), [Contestant("c", "factor")], length=4, repeats=2, seed=7))
    a, b, c = "low-confidence", "threshold", "factor"
    assert calls[:3] == [(a, [7]), (b, [7]), (c, [7])]  # warm-up
    assert calls[3:] == [
        *((a, [7]), (b, [7]), (c, [7])),
        *((b, [8]), (c, [8]), (a, [8])),
        *((b, [7]), (c, [7]), (a, [7])),
        *((c, [8]), (a, [8]), (b, [8])),
    ]


def test_drift_is_measured_outside_the_clock_once_per_problem_and_only_where_something_is_stored(
    llada: unmask.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[str, bool]] = []

    def spy(model: unmask.Model, state: DenoisingState, recipe: Recipe, record: bool, drift: bool = False) -> object:
        runs.append((recipe.specs()["cache"], drift))
        return complete(model, state, recipe, record=record, drift=drift)

    monkeypatch.setattr("unmask.bench.runner.complete", spy)
    problems, mine = [Problem(EXACT, "sort the list", "1", "1")], [Contestant("mine", "threshold", cache="dual")]
    options: dict[str, Any] = {"length": 12, "repeats": 2, "clock": every_call_a_second()}
    rows = by_method(bench(llada, problems, mine, drift=True, **options))
    assert runs.count(("dual", True)) == 1 and ("none", True) not in runs and runs.count(("dual", False)) == 3
    assert [row.drift for row in (*rows["1 token/step"], *rows["threshold 0.9"])] == [0.0] * 4
    first, second = rows["mine"]
    [alone] = complete(
        llada, start_state(llada, ["sort the list"], 12), Recipe.of("threshold", cache="dual"), drift=True
    )
    assert first.drift == second.drift == alone.drift != 0.0
    assert first.seconds == second.seconds == 1.0 and first.nfe == second.nfe == alone.nfe
    plain = bench(llada, problems, mine, length=12)
    assert {row.drift for row in plain} == {None}


def test_tasks_take_turns_and_never_share_a_batch() -> None:
    problems = [*asked("1", "1", "1", task="x"), *asked("1", task="y")]
    assert batched(problems, 1) == [[0], [3], [1], [2]]
    assert batched(problems, 2) == [[0, 1], [3], [2]]


def test_rotation_keeps_the_circle() -> None:
    assert [rotated("abc", by) for by in (0, 1, 2, 3)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_warm_up_and_grading_are_not_timed(llada: unmask.Model) -> None:
    calls, ticks = 0, 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return float(calls)

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    problems = asked("1", "1", "1")
    rows = list(bench(reciter(llada, "1"), problems, length=4, repeats=2, batch_size=2, clock=clock, tick=tick))
    assert len(rows) == 2 * 3 * 2
    assert calls == 2 * 2 * (2 * 2)  # twice for 2 methods on 2 batches, 2 times
    assert ticks == num_ticks(2, problems, batch_size=2, repeats=2) == 2 + 2 * 2 * 2


def test_a_batch_shares_its_seconds_and_answers_as_each_prompt_alone(llada: unmask.Model) -> None:
    problems = [Problem(EXACT, prompt, "", prompt) for prompt in ("12+34=", "sort: dbca", "reverse: abc")]
    alone = by_method(bench(llada, problems, length=4, clock=every_call_a_second()))
    together = by_method(bench(llada, problems, length=4, batch_size=2, clock=every_call_a_second()))
    for method, rows in together.items():
        assert [row.batch_rows for row in rows] == [2, 2, 1]
        assert [row.seconds for row in rows] == [0.5, 0.5, 1.0]
        assert [row.batch_seconds for row in rows] == [1.0, 1.0, 1.0]
        assert [row.answer for row in rows] == [row.answer for row in alone[method]]
        assert [row.nfe for row in rows] == [row.nfe for row in alone[method]]
        assert {row.config_hash for row in rows} == {row.config_hash for row in alone[method]}


def test_a_row_tells_what_it_takes_to_get_the_answer_again(llada: unmask.Model) -> None:
    method = Contestant("mine", "low-confidence(steps=2)", "sequential(block_length=2)", "dual", temperature=0.5)
    row = next(row for row in bench(llada, asked("1"), [method], length=4, seed=3) if row.method == "mine")
    assert (row.decoder, row.schedule, row.cache) == (
        "low-confidence(steps=2)",
        "sequential(block_length=2)",
        "dual",
    )
    assert (row.sampling, row.stop, row.guidance) == ("sampling(temperature=0.5)", "stop", 0.0)
    assert (row.length, row.seed) == (4, 3)
    assert (row.template, row.grader, row.few_shot, row.dtype, row.device) == ("chat", "exact", 0, "float32", "cpu")
    assert row.parameters == 344736 and row.threads == 1
    assert set(row.versions) == {"python", "unmask", "torch", "transformers"}
    again = unmask.generate(
        llada,
        [PROMPT],
        decoder=row.decoder,
        schedule=row.schedule,
        cache=row.cache,
        length=row.length,
        temperature=0.5,
        seed=row.seed,
    )[0]
    assert (again.text, again.nfe, again.rows_computed) == (row.answer, row.nfe, row.rows_computed)
    assert json.loads(json.dumps(row.to_dict())) == row.to_dict()


def test_the_config_hash_depends_on_the_method_and_on_nothing_else(llada: unmask.Model) -> None:
    def hashes(model: unmask.Model, **options: Any) -> dict[str, str]:
        found = bench(model, asked("1"), [Contestant("mine", "factor")], **options)
        return {row.method: row.config_hash for row in found}

    first = hashes(reciter(llada, "1"), length=4)
    assert len(set(first.values())) == 3
    assert hashes(reciter(llada, "2"), length=4, seed=9, batch_size=3) == first
    assert set(hashes(reciter(llada, "1"), length=5).values()).isdisjoint(first.values())
    guided = hashes(reciter(llada, "1").guided(1.0), length=4)
    assert set(guided.values()).isdisjoint(first.values())


def test_a_repeat_that_answers_otherwise_is_marked(llada: unmask.Model) -> None:
    passes = 0

    def fickle(shown: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        token = 1 if passes <= 4 else 2  # two warm-ups and two answers
        logits = torch.zeros(*shown.shape, llada.facts.vocab_size)
        logits[..., token] = 30.0
        return logits

    rows = list(bench(fake(llada, fickle), asked("1"), length=1, repeats=2))
    assert [(row.repeat, row.answer, row.correct, row.changed) for row in rows] == [
        (0, "1", True, False),
        (0, "1", True, False),
        (1, "2", False, True),
        (1, "2", False, True),
    ]


def test_equal_answers_to_a_problem_are_graded_once(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    graded: list[str] = []

    def spy(problems: list[Problem], texts: list[str]) -> list[bool]:
        graded.extend(texts)
        return grade(problems, texts)

    monkeypatch.setattr("unmask.bench.runner.grade", spy)
    rows = list(bench(reciter(llada, "12"), asked("12", "13"), length=4, repeats=2))
    assert graded == ["12", "12"]
    assert [row.correct for row in rows] == [True, True, False, False] * 2


@pytest.mark.parametrize("option", ["repeats", "length", "batch_size"])
def test_counts_below_one_are_refused(llada: unmask.Model, option: str) -> None:
    options: dict[str, Any] = {option: 0}
    with pytest.raises(RequestError, match=f"{option} must be at least 1: got 0"):
        bench(llada, asked("1"), **options)


def test_bad_input_is_refused_before_anything_is_computed(llada: unmask.Model) -> None:
    model = reciter(llada, "1")
    with pytest.raises(RequestError, match="no problems"):
        bench(model, [])
    with pytest.raises(UnknownNameError, match='no decoder named "nothing"'):
        bench(model, asked("1"), [Contestant("mine", "nothing")])
    with pytest.raises(RequestError, match='two different methods are named "mine"'):
        bench(model, asked("1"), [Contestant("mine", "factor"), Contestant("mine", "entropy")])
    with pytest.raises(RequestError, match=r"problem 1 \(exact\) has a prompt of 1024 tokens"):
        bench(model, [*asked("1"), Problem(EXACT, "a" * 1024, "1", "long")])
    with pytest.raises(RequestError, match="prompt is empty"):
        bench(model, [Problem(EXACT, " ", "1", "empty")])
    assert isinstance(model.predictor, FunctionPredictor) and model.predictor.seen == []


def test_a_canvas_beyond_the_trained_context_is_warned_of_once(llada: unmask.Model) -> None:
    with pytest.warns(UserWarning, match="1 of 2 prompts and their answers take up to 1032 tokens") as caught:
        bench(reciter(llada, "1"), [*asked("1"), Problem(EXACT, "a" * 1000, "1", "long")], length=32)
    assert len(caught) == 1


def test_a_pair_that_makes_no_sense_is_refused(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.caches.fast_dllm.Dual.fixed_canvas", True)
    monkeypatch.setattr("unmask.decoders.threshold.Factor.reshapes", True)
    with pytest.raises(CompositionError, match="Factor cannot run with Dual"):
        bench(llada, asked("1"), [Contestant("mine", "factor", cache="dual")])


def test_the_weights_hash_is_that_of_the_file(llada: unmask.Model) -> None:
    import hashlib

    file = Path(llada.source) / "model.safetensors"
    assert environment.weights_hash(llada.source) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert environment.weights_hash("made in memory") is None


def test_a_guided_model_is_seen_through(llada: unmask.Model) -> None:
    guided = llada.guided(2.0)
    assert environment.num_parameters(guided) == environment.num_parameters(llada)
    assert environment.dtype_of(guided) == "float32"
    assert (environment.guidance_of(guided.predictor), environment.guidance_of(llada.predictor)) == (2.0, 0.0)
    assert environment.dtype_of(replace(llada, predictor=reciter(llada, "1").predictor)) is None
