"""MATH-500: competition problems whose answer is a formula.

Source: Hendrycks et al., Measuring Mathematical Problem Solving With the MATH Dataset (arXiv 2103.03874); the 500 test
problems of Lightman et al., Let's Verify Step by Step (arXiv 2305.20050). Asked like Minerva (Lewkowycz et al., arXiv
2206.14858): "Problem:", "Solution:", four worked examples. Deviates: the examples are our own.

Two formulas are the same if they are after notation is set aside, or if they are the same number; beyond that
math-verify decides, where it is installed (extra `eval`).
"""

import re
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from unmask.evaluation.tasks.base import Problem, Verdict
from unmask.evaluation.tasks.numbers import NUMBER, numbers, value_of
from unmask.evaluation.tasks.published import Published
from unmask.evaluation.tasks.sources import Hub, Record

_PHRASES = (
    re.compile(r"final answer is:?\s*(.+?)(?:\.?\s*I hope it is correct|\.?\s*$|\.\s)", re.IGNORECASE | re.MULTILINE),
    re.compile(r"<answer>(.*?)</answer>", re.DOTALL),
    re.compile(r"answer(?:\s+is|\s*:|\s*=)\s*:?\s*(.+?)(?:\.?\s*$|\.\s)", re.IGNORECASE | re.MULTILINE),
)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
# Notation without a meaning of its own: spaces, sizes, dollar, percent and degree signs.
_NOISE = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|quad|qquad|limits|!|,|;|:|>)(?![a-zA-Z])|\\ |~"
    r"|\\?\$|\\?%|\^\s*\{?\s*\\circ\s*\}?|\\degree|\\[()\[\]]"
)
_UNIT = re.compile(r"\\(?:text|mbox|mathrm|textrm|textnormal)\s*\{([^{}]*)\}")
_NAMED = re.compile(r"^[a-zA-Z](?:\([a-z]\))?(?:=|\\in)(?!.*[=<>])")


def boxed(text: str) -> str | None:
    """What stands in the last \\boxed{} or \\fbox{}; in one that is never closed, all that follows."""
    starts = list(re.finditer(r"\\f?box(?:ed)?\s*(\{)|\\boxed\s+([^\s$.]+)", text))
    if not starts:
        return None
    if starts[-1][2]:
        return starts[-1][2]
    begin, depth = starts[-1].end(), 1
    for at in range(begin, len(text)):
        escaped = text[at - 1] == "\\"
        depth += (text[at] == "{" and not escaped) - (text[at] == "}" and not escaped)
        if depth == 0:
            return text[begin:at]
    return text[begin:]


def extracted(text: str) -> str | None:
    """The final answer in a solution: boxed, named as the answer, the last formula, or the last number."""
    inside = boxed(text)
    if inside is not None:
        return inside.strip()
    for phrase in _PHRASES:
        found = phrase.findall(text)
        if found:
            formulas = _FORMULA.findall(found[-1])
            return ("".join(formulas[0]) if len(formulas) == 1 else found[-1]).strip().rstrip(".")
    formulas = _FORMULA.findall(text)
    if formulas:
        return "".join(formulas[-1]).strip()
    if len(text.split()) == 1:
        return text.strip()
    values = list(NUMBER.finditer(text))
    return values[-1][0].strip() if values else None


def plain(formula: str) -> str:
    """A formula without the freedom of notation."""
    text = formula.strip().rstrip(".").replace("\u2212", "-").replace("\u03c0", "\\pi")
    inner = _UNIT.sub("", text)
    text = inner if inner.strip() else _UNIT.sub(r"\1", text)  # a unit goes, an answer that is a word stays
    text = re.sub(r"\\(?:text|mbox|mathrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    text = _NOISE.sub("", text.replace("{,}", ",").replace("\\!", ""))
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\\sqrt\s*(\d|[a-zA-Z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\s+", "", text)
    text = re.sub(r"(?<![\d.])\.(\d)", r"0.\1", text)
    text = re.sub(r"\\leq?(?![a-z])", "<=", re.sub(r"\\geq?(?![a-z])", ">=", text))
    text = re.sub(r"\^\{(\w)\}", r"^\1", re.sub(r"_\{(\w)\}", r"_\1", text))
    text = text.replace("\\{", "{").replace("\\}", "}") if text.startswith("\\{") else text
    text = _NAMED.sub("", text)
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    return text.rstrip(".,;")


def _number(text: str) -> Fraction | None:
    match = NUMBER.fullmatch(text)
    if match:
        return value_of(match)
    mixed = re.fullmatch(r"(-?)(\d+)(\\frac\{\d+\}\{\d+\})", text)
    if mixed:
        value = int(mixed[2]) + numbers(mixed[3])[0]
        return -value if mixed[1] else value
    return None


def _parts(text: str) -> list[str]:
    """The pieces between commas that stand in no bracket."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def same(got: str, wanted: str) -> bool:
    """Whether two formulas are one after notation is set aside, or one number."""
    got, wanted = plain(got), plain(wanted)
    if got == wanted or (got.lower() == wanted.lower() and wanted.isalpha()):
        return bool(got)
    left, right = _number(got), _number(wanted)
    if left is not None and right is not None:
        return left == right
    ends = got[:1] + got[-1:], wanted[:1] + wanted[-1:]
    if ends[0] == ends[1] and ends[0] in ("()", "[]", "(]", "[)", "{}") and min(len(got), len(wanted)) > 2:
        mine, theirs = _parts(got[1:-1]), _parts(wanted[1:-1])
        in_order = ends[0] != "{}"
    else:
        mine, theirs, in_order = _parts(got), _parts(wanted), False
        if len(mine) == 1:
            return False
    if len(mine) != len(theirs):
        return False
    if in_order:
        return all(map(same, mine, theirs))
    rest = list(theirs)
    for one in mine:
        match = next((other for other in rest if same(one, other)), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def verified(got: str, wanted: str) -> bool | None:
    """What math-verify says; None if it is not installed."""
    try:
        from math_verify import parse, verify
    except ImportError:
        return None
    # its own limit works by a signal, which only the main thread receives
    alarm = 5 if threading.current_thread() is threading.main_thread() else None
    try:
        sides = [parse(f"${side}$", parsing_timeout=alarm) for side in (wanted, got)]
        return bool(verify(*sides, timeout_seconds=alarm))
    except Exception:  # whatever a computer algebra system makes of a model's formula
        return False


@dataclass(frozen=True, slots=True)
class Math500(Published):
    """Competition problems; the answer is a formula."""

    shots: int = 4  # worked examples before the question

    name = "math-500"
    hub: ClassVar[Hub | None] = Hub("HuggingFaceH4/MATH-500")
    length: ClassVar[int] = 256
    stops: ClassVar[tuple[str, ...]] = ("Problem:", "<|im_end|>", "<|eot_id|>")

    def read(self, record: Record) -> Problem:
        """A record with "problem", "solution" and, if the solution has no \\boxed{}, "answer"."""
        answer = record["answer"] if "answer" in record else boxed(record["solution"])
        if not answer:
            raise ValueError("neither an answer nor a boxed one in the solution")
        text = record["problem"].strip()
        return Problem(self.name, text, str(record["solution"]).strip(), text, extra={"answer": str(answer)})

    def question(self, problem: Problem) -> str:
        """The problem, and "Solution:"."""
        ask = "" if self.shots else "Solve this problem, and put your final answer in \\boxed{}.\n\n"
        return f"{ask}Problem:\n{problem.prompt}\n\nSolution:"

    def verdict(self, problem: Problem, text: str) -> Verdict:
        """Compare the final answer with the reference."""
        wanted = problem.extra["answer"]
        got = extracted(self.trim(text))
        if got is None:
            return Verdict(False, "no answer found")
        if same(got, wanted):
            return Verdict(True, "right", got)
        if verified(got, wanted):
            return Verdict(True, "right by math-verify", got)
        return Verdict(False, f"wrong: {got[:100]}, not {wanted[:100]}", got)
