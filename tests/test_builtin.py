"""The model that comes with the package: it loads, it is small, and it solves problems it has never seen."""

from importlib import resources
from pathlib import Path

import pytest

import unmask
from conftest import DATA
from unmask.evaluation.tasks import SUITE, load_sudoku
from unmask.evaluation.tasks.suite import grade, held_out

FOLDER = Path(str(resources.files("unmask"))) / "builtin"


@pytest.fixture(scope="module")
def builtin() -> unmask.Model:
    return unmask.load("builtin", device="cpu")


def right(model: unmask.Model, problems: list, **options: object) -> int:  # type: ignore[type-arg]
    answers = unmask.generate(model, [one.prompt for one in problems], record=False, batch_size=12, **options)  # type: ignore[arg-type]
    return sum(grade(problems, [one.text for one in answers]))


def test_the_weights_are_small_and_have_their_card_beside_them() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 15e6
    card = (FOLDER / "README.md").read_text()
    assert all(word in card for word in ("Apache-2.0", "Unseen", "Limits", *SUITE))


def test_it_is_an_ordinary_llada_checkpoint(builtin: unmask.Model) -> None:
    facts = builtin.facts
    assert (facts.family, facts.shift, facts.attention) == ("llada", 0, "bidirectional")
    assert facts.max_length >= 512 and builtin.text.has_template


def test_it_solves_published_sudokus_it_was_not_trained_on(builtin: unmask.Model) -> None:
    puzzles = load_sudoku(DATA / "sudoku_sample.jsonl")[:12]
    assert right(builtin, puzzles, length=32) >= 9


def test_early_stop_gives_the_text_of_the_full_run(builtin: unmask.Model) -> None:
    prompts = [one.prompt for one in held_out("functions", 3, seed=5)]
    full, stopped = (unmask.generate(builtin, prompts, length=96, stop=stop) for stop in ("none", "tail"))
    assert [one.text for one in full] == [one.text for one in stopped]
    assert all(short.nfe <= long.nfe for short, long in zip(stopped, full, strict=True))


@pytest.mark.slow
def test_it_writes_functions_that_pass_their_hidden_tests(builtin: unmask.Model) -> None:
    assert right(builtin, held_out("functions", 24, seed=11), length=128, decoder="low-confidence") >= 12


@pytest.mark.slow
def test_careless_parallel_decoding_costs_accuracy(builtin: unmask.Model) -> None:
    """The gap that every method plays for: tokens of an answer depend on each other."""
    problems = held_out("functions", 24, seed=12)
    careful = right(builtin, problems, length=128, decoder="threshold(threshold=0.95)")
    careless = right(builtin, problems, length=128, decoder="threshold(threshold=0.4)")
    assert careless < careful
