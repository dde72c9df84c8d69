"""From answers to programs: fences, prose, bodies; and HumanEval and MBPP on real records."""

from pathlib import Path

import pytest

from unmask.errors import RequestError
from unmask.evaluation.grading import grade, grade_all
from unmask.evaluation.tasks import find_task
from unmask.evaluation.tasks.code import called, completed, program_of

RECORDS = Path(__file__).parents[1] / "data" / "tasks"
GOOD = "def f(x):\n    return x + 1\n"
HEAD = 'def f(x):\n    """Add one."""\n'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```python\n{GOOD}```",
        f"```\n{GOOD}```",
        f"~~~py\n{GOOD}~~~",
        f"Here it is:\n```python\n{GOOD}```\nIt adds one.\n```\n>>> f(1)\n2\n```",
        f"First, a helper:\n```python\nimport math\n```\nThen:\n```python\n{GOOD}```",
        f"```python\n{GOOD}",
        f"Sure! This adds one:\n\n{GOOD}\nThis function adds one to x.",
        f"{GOOD}\nDone",
        "  ```python\n  def f(x):\n      return x + 1\n  ```",
        f"```python\n{GOOD}\nprint(f(\n```",
        f"ONE = 1\n{GOOD}",
        f"Sure:\nONE = 1\n{GOOD}That is it.",
    ],
)
def test_the_program_is_found_in_an_answer(text: str) -> None:
    names: dict[str, object] = {}
    exec(program_of(text, {"f"}), names)
    assert names["f"](1) == 2  # type: ignore[operator]


def test_the_constant_above_a_function_belongs_to_it() -> None:
    assert program_of("ONE = 1\ndef f(x):\n    return x + ONE", {"f"}).startswith("ONE = 1")


def test_an_answer_without_code_stays_what_it_is() -> None:
    assert program_of("I do not know how.", {"f"}) == "I do not know how."


@pytest.mark.parametrize(
    "text",
    [
        "    return x + 1\n",
        "    y = x\n    return y + 1\n\ndef g():\n    pass\n",
        "return x + 1",
        "y = x\n    return y + 1",
        "y = x\nreturn y + 1",
        "    return x + 1\n\nThis adds one.",
        "\n    # one more\n\n    return x + 1\n\nprint(f(1))",
        "    return x + 1\n    return (",
    ],
)
def test_a_body_is_put_behind_its_head(text: str) -> None:
    names: dict[str, object] = {}
    exec(completed(HEAD, text) or "", names)
    assert names["f"](1) == 2  # type: ignore[operator]


def test_what_is_no_body_is_put_nowhere() -> None:
    assert completed(HEAD, "I do not know how.") is None


def test_names_of_the_program_are_told_from_those_of_python() -> None:
    checks = "import re\nassert set(f(g)) == {1} and math.isclose(1, 1) and all(x for x in h())"
    assert called(checks) == {"f", "g", "h"}
    assert called("assert sum(1, 2) == 3", "def sum(a, b):\n    return a + b") == {"sum"}


@pytest.mark.parametrize(
    ("spec", "file", "count"),
    [
        ("humaneval", "HumanEval.jsonl", 5),
        ("mbpp(part='all')", "mbpp.jsonl", 7),
        ("mbpp-sanitized", "sanitized-mbpp.jsonl", 4),
    ],
)
def test_reference_programs_pass_and_broken_ones_do_not(spec: str, file: str, count: int) -> None:
    problems = find_task(spec).problems(RECORDS / file)
    right = [problem.answer for problem in problems]
    wrong = [answer.replace("return ", "return not ") for answer in right]
    assert len(problems) == count
    verdicts = grade_all(spec, problems, right, run_code=True)
    assert [verdict.reason for verdict in verdicts] == ["passed"] * count
    assert not any(grade_all(spec, problems, wrong, run_code=True))


def test_a_whole_function_counts_like_its_body() -> None:
    """The head brings imports and helpers along, here the polynomial that find_zero is checked with."""
    problems = {problem.key: problem for problem in find_task("humaneval").problems(RECORDS / "HumanEval.jsonl")}
    problem = problems["HumanEval/32"]
    whole = "def find_zero(xs: list):" + "\n" + problem.answer
    assert grade("humaneval", problem, f"Here:\n```python\n{whole}```", run_code=True).passed
    assert grade("humaneval", problem, f"```python\n{problem.answer}```", run_code=True).passed
    assert not grade("humaneval", problem, "def find_zero(xs: list):\n    return 0.5", run_code=True).passed
    # a program cannot bring its own polynomial
    cheat = "def poly(xs, x):\n    return 0\n\ndef find_zero(xs: list):\n    return 0.5"
    assert not grade("humaneval", problem, cheat, run_code=True).passed


def test_code_runs_only_on_request() -> None:
    problem = find_task("humaneval").problems(RECORDS / "HumanEval.jsonl")[0]
    with pytest.raises(RequestError, match="run_code=True"):
        grade("humaneval", problem, problem.answer)


def test_a_raw_answer_ends_where_the_model_goes_on() -> None:
    task = find_task("mbpp")
    problem = task.problems(RECORDS / "mbpp.jsonl")[0]
    text = f"\n{problem.answer}\n[DONE]\n\nYou are an expert Python programmer:\n[BEGIN]\nx = 1\n[DONE]"
    assert "x = 1" not in task.program(problem, text).source
    assert "x = 1" not in task.program(problem, f"[BEGIN]{text}").source


def test_the_test_part_of_mbpp_is_tasks_11_to_510() -> None:
    keys = [problem.key for problem in find_task("mbpp").problems(RECORDS / "mbpp.jsonl")]
    assert keys == ["11", "12", "56", "367"]
