import itertools
import random
from collections import Counter
from pathlib import Path

import pytest

from unmask.errors import UnknownNameError
from unmask.evaluation.tasks import TASKS, Problem, is_held_out, load_sudoku
from unmask.evaluation.tasks.sudoku import GRIDS, solutions
from unmask.evaluation.tasks.suite import grade, held_out, training_problems, without_fence

SAMPLE = Path(__file__).parents[1] / "data" / "sudoku_sample.jsonl"
EVEN_MIX = {"functions": 1.0, "sudoku": 1.0, "words": 1.0}


def sampled(task: str, count: int, seed: int = 0) -> list[Problem]:
    rng = random.Random(seed)
    return [TASKS[task].sample(rng) for _ in range(count)]


def swapped(problems: list[Problem], old: str, new: str) -> tuple[list[Problem], list[str]]:
    """The problems whose answer contains the old text, and these answers with the new one."""
    changed = [problem for problem in problems if old in problem.answer]
    return changed, [problem.answer.replace(old, new) for problem in changed]


@pytest.mark.parametrize("task", sorted(TASKS))
def test_the_same_seed_gives_the_same_problems(task: str) -> None:
    assert sampled(task, 50, seed=3) == sampled(task, 50, seed=3)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_problem_is_plain_ascii_and_names_its_task(task: str) -> None:
    for problem in sampled(task, 200):
        assert problem.task == task
        assert (problem.prompt + problem.answer + problem.key).isascii()
        assert "@" not in problem.prompt + problem.answer


@pytest.mark.slow
def test_every_reference_function_passes_its_own_checks() -> None:
    problems = sampled("functions", 3000)
    verdicts = grade(problems, [problem.answer for problem in problems])
    failed = [problem.answer for problem, passed in zip(problems, verdicts, strict=True) if not passed]
    assert failed == []


@pytest.mark.parametrize(
    ("old", "new", "most_passing"),
    [("    return ", "    return not ", 0.01), (" > ", " <= ", 0.05), (" + ", " - ", 0.15), ("(", "((", 0.0)],
)
def test_mutated_reference_functions_fail(old: str, new: str, most_passing: float) -> None:
    """A few mutants mean the same: a range one shorter of which nothing is kept, a count of what does not occur."""
    problems, texts = swapped(sampled("functions", 300, seed=1), old, new)
    assert len(problems) >= 20
    assert sum(grade(problems, texts)) <= most_passing * len(problems)


def test_a_constant_that_is_off_by_one_is_noticed() -> None:
    problems = [problem for problem in sampled("functions", 500, seed=2) if " > 7" in problem.answer]
    assert problems
    assert sum(grade(problems, [problem.answer.replace(" > 7", " > 8") for problem in problems])) <= len(problems) // 2


@pytest.mark.slow
def test_the_key_of_a_function_ignores_its_names() -> None:
    problems = sampled("functions", 1000)
    heads = {(problem.key, problem.prompt) for problem in problems}
    assert len(heads) > len({problem.key for problem in problems})
    for problem in problems:
        assert problem.entry_point not in problem.key
        assert problem.entry_point in problem.prompt


@pytest.mark.slow
@pytest.mark.parametrize(("task", "long"), [("functions", 150), ("functions-wide", 200)])
def test_functions_are_many_and_differ_in_length(task: str, long: int) -> None:
    problems = sampled(task, 1000)
    assert len({problem.key for problem in problems}) > 850
    lengths = sorted(len(problem.answer) for problem in problems)
    assert lengths[100] < 90
    assert lengths[900] > long


def test_checks_hold_arguments_that_an_answer_can_not_spoil() -> None:
    problem = Problem("functions", "", "", "", ((([1, 2],), 0), (([1, 2],), 0)), "f")
    assert grade([problem], ["def f(xs):\n    xs.clear()\n    return len(xs)"]) == [True]
    assert problem.checks[0][0] == ([1, 2],)


def test_a_fenced_answer_counts_like_a_bare_one() -> None:
    problem = sampled("functions", 1)[0]
    assert TASKS["functions"].grade(problem, f"Here it is:\n```python\n{problem.answer}\n```\nDone.")
    assert without_fence("```\nx = 1\n```") == "x = 1\n"


def test_there_are_288_grids() -> None:
    assert len(set(GRIDS)) == 288


def test_sampled_sudokus_have_one_solution_and_4_to_12_givens() -> None:
    givens = Counter()
    for problem in sampled("sudoku", 500):
        assert solutions(problem.key) == [problem.answer.replace("\n", "")]
        givens[16 - problem.key.count("0")] += 1
    assert set(givens) == set(range(4, 13))


def test_sudoku_accepts_only_the_solution() -> None:
    problem = sampled("sudoku", 1)[0]
    task = TASKS["sudoku"]
    assert task.grade(problem, f"\n{problem.answer} ")
    assert not task.grade(problem, problem.answer[::-1])
    assert not task.grade(problem, problem.key)


def test_a_published_file_of_sudokus_loads() -> None:
    problems = load_sudoku(SAMPLE)
    assert len(problems) == 20
    assert load_sudoku(SAMPLE.parent) == problems
    assert all(grade(problems, [problem.answer for problem in problems]))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"input": "1234"}', "needs"),
        ('{"input": "1234"', "bad.jsonl, line 1: not JSON: Expecting"),
        ('{"input": "0000\\n0000\\n0000\\n0000", "output": "1234\\n3412\\n2143\\n4321"}', "only solution"),
        ('{"input": "12", "output": "12"}', "four rows"),
    ],
)
def test_a_malformed_sudoku_record_is_refused(tmp_path: Path, record: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(record, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_sudoku(path)


def test_word_problems_compute_what_they_say() -> None:
    for problem in sampled("words", 1000):
        *steps, last = problem.answer.split("\n")
        assert 2 <= len(steps) <= 3
        for step in steps:
            left, right = step.split(" = ")
            first, sign, second = left.split()
            results = {"+": int(first) + int(second), "-": int(first) - int(second), "*": int(first) * int(second)}
            results["/"] = int(first) // int(second) if sign == "/" else 0
            assert results[sign] == int(right)
            assert 0 <= int(right) <= 60
        assert last == f"#### {steps[-1].split(' = ')[1]}"


def test_word_problems_are_graded_by_the_last_marked_number() -> None:
    problem = Problem("words", "", "5 + 3 = 8\n#### 8", "")
    task = TASKS["words"]
    assert task.grade(problem, "#### 7\nno, wait\n#### 8")
    assert not task.grade(problem, "#### 8\n#### 7")
    assert not task.grade(problem, "5 + 3 = 8")


def test_the_key_of_a_word_problem_ignores_names_and_objects() -> None:
    for problem in sampled("words", 100):
        assert "{a}" in problem.key
        assert "{o}" in problem.key
        assert problem.prompt.split()[0] not in problem.key


def test_training_never_yields_a_held_out_or_an_excluded_key() -> None:
    excluded = {problem.key for problem in load_sudoku(SAMPLE)}
    drawn = list(itertools.islice(training_problems(EVEN_MIX, 0, exclude=excluded), 900))
    assert not any(is_held_out(problem.key) for problem in drawn)
    assert excluded.isdisjoint(problem.key for problem in drawn)


def test_excluding_what_training_yields_changes_what_it_yields() -> None:
    mix = {"sudoku": 1.0}
    first = next(training_problems(mix, 5))
    assert next(training_problems(mix, 5, exclude=[first.key])).key != first.key


def test_training_keeps_to_the_mix() -> None:
    drawn = itertools.islice(training_problems({"functions": 3.0, "words": 1.0}, 0), 600)
    shares = Counter(problem.task for problem in drawn)
    assert shares["sudoku"] == 0
    assert 0.7 < shares["functions"] / 600 < 0.8


def test_training_refuses_an_unknown_task_at_once() -> None:
    with pytest.raises(UnknownNameError, match="sudoku"):
        training_problems({"sudoko": 1.0}, 0)


@pytest.mark.parametrize("mix", [{}, {"words": 0.0}, {"words": 1.0, "sudoku": -1.0}])
def test_training_refuses_a_mix_without_weight(mix: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        training_problems(mix, 0)


@pytest.mark.parametrize("task", sorted(TASKS))
def test_held_out_problems_are_distinct_repeatable_and_solved_by_their_answers(task: str) -> None:
    problems = held_out(task, 30)
    assert problems == held_out(task, 30)
    assert len({problem.key for problem in problems}) == 30
    assert all(is_held_out(problem.key) for problem in problems)
    assert grade(problems, [problem.answer for problem in problems]) == [True] * 30


def test_grade_keeps_the_order_of_mixed_tasks() -> None:
    problems = list(itertools.islice(training_problems(EVEN_MIX, 1), 30))
    texts = [problem.answer if index % 2 else "" for index, problem in enumerate(problems)]
    assert grade(problems, texts) == [bool(index % 2) for index in range(30)]


def test_grade_needs_one_text_a_problem() -> None:
    with pytest.raises(ValueError, match="1 problems and 0 texts"):
        grade(sampled("words", 1), [])
