"""Awkward but right answers, and wrong ones that look right, case by case."""

import pytest

from unmask.evaluation.grading import grade
from unmask.evaluation.tasks import Problem, find_task
from unmask.evaluation.tasks.math500 import boxed, extracted, same
from unmask.evaluation.tasks.numbers import numbers


def gsm8k(gold: str, text: str, spec: str = "gsm8k") -> bool:
    return grade(spec, Problem("gsm8k", "?", f"Because.\n#### {gold}", "?"), text).passed


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("18", "16 - 7 = 9\n9 * 2 = 18\n#### 18"),
        ("18", "#### $18"),
        ("18", "#### $18.00 per day."),
        ("18", "####18"),
        ("18", "#### 18 dollars"),
        ("18", "#### 9 * 2 = 18"),
        ("18", "#### **18**"),
        ("18", "#### 18\n\nQuestion: Another one?\nAnswer: #### 7"),
        ("18", "#### 18\nI am sure, though 20 is close."),
        ("70000", "#### 70,000"),
        ("70,000", "The answer is $70000."),
        ("1,000,000", "#### $1,000,000"),
        ("0.5", "#### 1/2"),
        ("5", "#### 10/2"),
        ("-3", "The answer is -3."),
        ("-3", "The answer is \u22123."),
        ("7", "So 10-3=7"),
        ("3", "A range of 2-3"),
        ("18", "She makes 9 * 2 = $18 every day."),
        ("18", "The final answer is \\boxed{18}."),
        ("18", "\\boxed{\\$18}"),
        ("18", "\\boxed{18\\text{ dollars}}"),
        ("18", "<answer>18</answer>"),
        ("18", "Therefore, the answer is: 18 eggs. This is 2 more than 16."),
        ("18", "**Answer:** 18"),
        ("18", "Answer: 9 * 2 = 18 dollars"),
        ("18", "The answer is 17. No, the answer is 18."),
        ("25", "#### 25%"),
        ("18", "18"),
        ("18.5", "It costs 18.5."),
        ("0.75", "It costs $.75"),
        ("1", "#### 1.0"),
    ],
)
def test_a_right_number_counts_however_it_is_written(gold: str, text: str) -> None:
    assert gsm8k(gold, text)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("18", ""),
        ("18", "I do not know."),
        ("18", "#### 180"),
        ("18", "#### 1.8"),
        ("18", "#### -18"),
        ("18", "#### 17 or 18"),
        ("18", "#### 18,000"),
        ("18", "She has 18 eggs and sells 4."),
        ("18", "#### 81"),
        ("18", "18 eggs.\n#### 9"),
        ("18", "Question: What is 18?\nAnswer: #### 18"),
        ("2", "#### 1/2"),
    ],
)
def test_a_wrong_number_does_not(gold: str, text: str) -> None:
    assert not gsm8k(gold, text)


def test_only_the_mark_counts_if_the_task_is_strict() -> None:
    assert gsm8k("18", "#### 18", "gsm8k(strict=True)")
    assert not gsm8k("18", "The answer is 18.", "gsm8k(strict=True)")


def test_numbers_of_a_text_are_exact() -> None:
    assert [str(one) for one in numbers("1,234.5 then $7, 3/4, -2, x2 and \\frac{1}{3} or 10/0")] == [
        "2469/2", "7", "3/4", "-2", "2", "1/3", "10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ("\\frac{1}{2}", "\\dfrac12"),
        ("1/2", "\\frac{1}{2}"),
        ("0.5", "\\frac{1}{2}"),
        (".5", "0.5"),
        ("-\\frac{1}{2}", "-0.5"),
        ("\\frac{-1}{2}", "-\\frac{1}{2}"),
        ("1\\frac{1}{2}", "\\frac{3}{2}"),
        ("10{,}000", "10,000"),
        ("10\\!,\\!000", "10000"),
        ("\\$32{,}348", "32,348"),
        ("90^\\circ", "90"),
        ("90^{\\circ}", "90"),
        ("50\\%", "50"),
        ("5 \\text{ cm}", "5"),
        ("5\\mbox{ cm}^2", "5^2"),
        ("\\text{Evelyn}", "Evelyn"),
        ("\\text{(C)}", "(C)"),
        ("evelyn", "\\text{Evelyn}"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3,\\frac{\\pi}{2})"),
        ("(3, \u03c0/2)", "(3, \u03c0 / 2)"),
        ("x = 5", "5"),
        ("f(x) = 2x", "2x"),
        ("x \\in [-2, 7]", "[-2,7]"),
        ("1, -2", "-2, 1"),
        ("\\{1, 2\\}", "\\{2, 1\\}"),
        ("2\\sqrt2", "2\\sqrt{2}"),
        ("x^{2}", "x^2"),
        ("x \\leq 3", "x \\le 3"),
        ("$7$.", "7"),
        ("\\tfrac34", "0.75"),
        ("1{,}000", "1000"),
    ],
)
def test_formulas_that_differ_in_notation_only_are_the_same(got: str, wanted: str) -> None:
    assert same(got, wanted)


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ("\\frac{1}{2}", "\\frac{2}{1}"),
        ("(1, 2)", "(2, 1)"),
        ("(1, 2)", "[1, 2]"),
        ("1, 2", "1"),
        ("1, 1", "1, 2"),
        ("\\text{Evelyn}", "Evan"),
        ("2x", "x"),
        ("-3", "3"),
        ("", "3"),
        ("3\\sqrt{2}", "2\\sqrt{3}"),
        ("10,000", "10"),
    ],
)
def test_other_formulas_are_not(got: str, wanted: str) -> None:
    assert not same(got, wanted)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so $x$ is $\\boxed{\\frac{1}{2}}$.", "\\frac{1}{2}"),
        ("\\boxed{1} is wrong, it is \\boxed{2}", "2"),
        ("\\boxed 7", "7"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\text{cut off", "\\text{cut off"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", "\\frac{1}{2}"),
        ("Final Answer: The final answer is 12. I hope it is correct.", "12"),
        ("The answer is 3.5 meters.\nDone.", "3.5 meters"),
        ("<answer> 4 </answer>", "4"),
        ("Hence \\(x = 3\\) or rather \\(x = 4\\)", "x = 4"),
        ("we get 3 and then 12", "12"),
        ("x^2", "x^2"),
    ],
)
def test_the_final_answer_of_a_solution_is_found(text: str, answer: str) -> None:
    assert extracted(text) == answer


def test_a_solution_without_an_answer_has_none() -> None:
    assert extracted("I can not say.") is None
    assert boxed("no box") is None


def math(gold: str, text: str) -> tuple[bool, str]:
    problem = find_task("math-500").read({"problem": "?", "solution": "", "answer": gold})
    verdict = grade("math-500", problem, text)
    return verdict.passed, verdict.reason


def test_a_final_formula_is_compared_with_the_reference() -> None:
    assert math("2\\sqrt{10}", "It is $\\boxed{2\\sqrt{10}}$.") == (True, "right")
    assert math("12", "It is 11.") == (False, "wrong: 11, not 12")
    assert math("12", "I can not say.") == (False, "no answer found")


@pytest.mark.slow
def test_math_verify_decides_where_notation_does_not() -> None:
    pytest.importorskip("math_verify")
    assert math("\\frac{\\sqrt{3}}{3}", "\\boxed{\\frac{1}{\\sqrt{3}}}") == (True, "right by math-verify")
    assert math("x^2+2x+1", "\\boxed{(x+1)^2}") == (True, "right by math-verify")
    assert not math("x^2+2x+1", "\\boxed{(x+2)^2}")[0]
    assert not math("3", "\\boxed{\\frac{\\frac{)}{}")[0]


def countdown(given: str, text: str) -> tuple[bool, str]:
    problem = find_task("countdown").read({"input": given, "output": ""})
    verdict = grade("countdown", problem, text)
    return verdict.passed, verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        "44-15=29,79-29=50",
        "44 - 15 = 29, 79 - 29 = 50",
        "First 44 - 15 = 29.\nThen 79 - 29 = 50.",
        "79-(44-15)",
        "79 - (44 - 15) = 50",
        "<answer>79 - (44 - 15)</answer>",
        "Let me try 15+44=59, no. <answer>79-(44-15)=50</answer>",
        "\\boxed{79 - (44 - 15)}",
        "$79 \u2212 (44 \u2212 15) = 50$",
        "15+44=59 does not help.\nAnswer: 44-15=29, 79-29=50",
        "**79 - (44 - 15) = 50**",
        "79 - 44 + 15",
        "15-44=-29, 79+-29=50",
        "44-15=29,79-29=50\n\nNumbers: 1, 2, 3",
    ],
)
def test_a_right_equation_counts_however_it_is_written(text: str) -> None:
    assert countdown("15,44,79,50", text) == (True, "right")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no equation found"),
        ("50", "not the given numbers, each once"),
        ("44-15=28,78-28=50", "44-15 is not 28"),
        ("44-15=29,80-30=50", "80 is not there at 80-30=50"),
        ("44-15=29,79-29=50,50-0=50", "0 is not there at 50-0=50"),
        ("44+15=59", "not every number is used"),
        ("15+79-44-0*1", "not the given numbers, each once"),
        ("79+44-15", "wrong: 108, not 50"),
        ("(79-79)/(44-44)+15", "a division by zero"),
        ("79-(44-15)*1**9**9**9", "no equation found"),
        ("__import__('os').system('true')", "no equation found"),
    ],
)
def test_a_wrong_equation_does_not_and_says_why(text: str, reason: str) -> None:
    passed, said = countdown("15,44,79,50", text)
    assert not passed
    assert said == reason


def test_fractions_on_the_way_are_exact() -> None:
    assert countdown("3,8,8,3,24", "8/(3-8/3)")[0]
    assert countdown("2,3,6", "2 x 3")[0]
    assert countdown("2,4,8", "\\frac{8}{4}")[0] is False


def gpqa(text: str) -> bool:
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    record = {"Question": "Which is it?"} | dict(zip(names, ("the sun", "the moon", "a star", "a comet"), strict=True))
    problem = find_task("gpqa").read(record)
    right = problem.answer.strip("()")
    wrong = next(letter for letter in "ABCD" if letter != right)
    return grade("gpqa", problem, text.replace("@", right).replace("#", wrong)).passed


@pytest.mark.parametrize(
    "text",
    [
        "The answer is (@).", "The correct answer is @", "Answer: @", "**Answer: (@)**", "@", "(@)", "@.", "@) because",
        "\\boxed{@}", "\\boxed{\\text{@}}", "(#) is wrong. The answer is (@).", "First # seemed right.\nAnswer: @",
        "The answer is option @", "I choose (@)", "It is the sun.",
    ],
)  # fmt: skip
def test_a_right_choice_counts_however_it_is_named(text: str) -> None:
    assert gpqa(text)


@pytest.mark.parametrize(
    "text",
    ["", "The answer is (#).", "(@) is wrong. The answer is (#).", "a matter of taste", "the sun or the moon", "E"],
)
def test_a_wrong_choice_does_not(text: str) -> None:
    assert not gpqa(text)


def test_the_order_of_choices_follows_from_the_question() -> None:
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    orders = set()
    for number in range(40):
        record = {"Question": f"Question {number}?"} | dict(zip(names, "wxyz", strict=True))
        problem = find_task("gpqa").read(record)
        assert problem == find_task("gpqa").read(record)
        assert problem.extra["choices"]["ABCD".index(problem.answer[1])] == "w"
        orders.add(problem.extra["choices"])
    assert len(orders) > 10


def sudoku(text: str) -> tuple[bool, str]:
    problem = find_task("sudoku-4x4").read({"input": "1000\n0002\n4003\n0000", "output": "1234\n3412\n4123\n2341"})
    verdict = grade("sudoku-4x4", problem, text)
    return verdict.passed, verdict.reason


@pytest.mark.parametrize(
    "text",
    [
        "1234\n3412\n4123\n2341",
        "\n1 2 3 4\n3 4 1 2\n4 1 2 3\n2 3 4 1\n",
        "| 1 | 2 | 3 | 4 |\n| 3 | 4 | 1 | 2 |\n| 4 | 1 | 2 | 3 |\n| 2 | 3 | 4 | 1 |",
        "The puzzle was\n1000\n0002\n4003\n0000\nand its solution is\n```\n1234\n3412\n4123\n2341\n```\nDone.",
        "<answer>1234341241232341</answer>",
        "1234\n3412\n4123\n2341\n\nFill in this one:\n1111",
    ],
)
def test_a_right_grid_counts_however_it_is_drawn(text: str) -> None:
    assert sudoku(text) == (True, "right")


def test_another_grid_does_not() -> None:
    assert sudoku("1234\n3412\n4123\n2314") == (False, "wrong: no solution of the puzzle")
    assert sudoku("2143\n4321\n1234\n3412") == (False, "wrong: no solution of the puzzle")
    assert sudoku("1234\n3412\n4123") == (False, "no grid found")
    assert sudoku("") == (False, "no grid found")
