"""Every record of the published files, where the folder `UNMASK_DATA` holds them. Takes some minutes."""

import os
from pathlib import Path

import pytest

from unmask.evaluation.grading import grade_all
from unmask.evaluation.tasks import find_task

FOLDER = os.environ.get("UNMASK_DATA")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(FOLDER is None, reason="UNMASK_DATA names no folder")]
WORKERS = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("spec", "place", "count"),
    [
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("gsm8k", "gsm8k/train.jsonl", 7473),
        ("countdown", "countdown", 3000),
        ("sudoku-4x4", "sudoku", 972),
    ],
)
def test_every_gold_answer_is_right_and_none_with_other_digits(spec: str, place: str, count: int) -> None:
    problems = find_task(spec).problems(Path(FOLDER or "") / place)
    assert len(problems) == count
    assert all(grade_all(spec, problems, [problem.answer for problem in problems]))
    digits = str.maketrans("0123456789", "1234567890")
    assert not any(grade_all(spec, problems, [problem.answer.translate(digits) for problem in problems]))


@pytest.mark.parametrize(
    ("spec", "place", "count"),
    [
        ("humaneval", "humaneval", 164),
        ("mbpp-sanitized(part='all')", "mbpp/sanitized-mbpp.jsonl", 427),
        ("mbpp(part='all')", "mbpp/mbpp.jsonl", 974),
    ],
)
def test_every_reference_program_passes_and_hardly_a_negated_one(spec: str, place: str, count: int) -> None:
    problems = find_task(spec).problems(Path(FOLDER or "") / place)
    assert len(problems) == count
    right = grade_all(spec, problems, [problem.answer for problem in problems], run_code=True, workers=WORKERS)
    assert [(problem.key, one.reason) for problem, one in zip(problems, right, strict=True) if not one] == []
    wrong = [problem.answer.replace("return ", "return not ") for problem in problems]
    changed = [(problem, text) for problem, text in zip(problems, wrong, strict=True) if text != problem.answer]
    passed = grade_all(spec, [one for one, _ in changed], [text for _, text in changed], run_code=True, workers=WORKERS)
    # `return not x` in a helper or in a branch that no check reaches changes nothing
    assert sum(map(bool, passed)) <= 0.02 * len(changed)
