"""Functions that filter, change and order a sequence step by step and then return something about what is left.

A pipeline is a meaning (sources, steps and an ending that are Python callables), a description and one of many
programs. Programs differ in style (loop or comprehension, guard or nesting, fused or separate steps), never in meaning.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmask.evaluation.tasks.endings import COUNT, LIST, TEXT, Ending, draw_ending
from unmask.evaluation.tasks.primitives import Change, Condition, Draw, change, condition
from unmask.evaluation.tasks.sequences import Order, Source, Step, draw_order, draw_source
from unmask.evaluation.tasks.writing import Writer


@dataclass(frozen=True, slots=True)
class Sketch:
    """A function before its names are chosen.

    Args:
        say: description that completes "Write a function ... that", with places such as `@x`.
        key: canonical description.
        body: lines of code, indented by four spaces a level, without the `def` line.
        arguments: kinds of the arguments, in order: "numbers", "words", "text", "count", "digits", "whole", "small" or
            "table".
        meaning: the function that the code must equal.
    """

    say: str
    key: str
    body: list[str]
    arguments: tuple[str, ...]
    meaning: Callable[..., Any]


def _steps(draw: Draw, kind: str, ending_kinds: list[str]) -> list[Step]:
    """Draw up to three steps and append the kind of the elements that come out."""
    rng = draw.rng
    steps: list[Step] = []
    wanted = rng.choices((0, 1, 2, 3), (1, 4, 5, 3) if draw.wide else (2, 7, 3, 0))[0]
    changed_char = False
    while len(steps) < wanted:
        chance = rng.random()
        if chance < 0.42 and not changed_char:
            if steps and isinstance(steps[-1], Condition):
                continue
            steps.append(condition(draw, kind))
        elif chance < 0.76:
            if (steps and isinstance(steps[-1], Change)) or changed_char:
                wanted = max(len(steps), wanted - 1)
                continue
            made = change(draw, kind)
            steps.append(made)
            changed_char = made.result == "char"
            kind = made.result
        elif kind != "char":
            if steps and isinstance(steps[-1], Order) and steps[-1].code[0].startswith("%"):
                continue
            steps.append(draw_order(draw, kind))
        elif not steps:
            steps.append(condition(draw, kind))
        else:
            wanted -= 1
    ending_kinds.append("text" if changed_char else kind)
    return steps


def _phrases(source: Source, steps: list[Step]) -> list[str]:
    """One phrase a step; only the first names the source."""
    said = []
    for index, step in enumerate(steps):
        first = index == 0
        if isinstance(step, Condition):
            said.append(f"keeps {source.every if first else 'the ones'} that {step.say}")
        elif isinstance(step, Change):
            said.append(step.say.replace("%", source.each if first else "each one", 1))
        else:
            said.append(step.say.replace("%", source.whole if first else "them", 1))
    return said


def _description(rng: random.Random, source: Source, steps: list[Step], ending: Ending) -> tuple[str, str]:
    """The text and the key. Short pipelines may be said in one phrase, which leaves the key as it is."""
    end = ending.say.replace("%", "" if steps else f" of {source.every}")
    said = [*_phrases(source, steps), f"returns {end}"]
    key = ", ".join(said[:-1]) + " and " + said[-1] if steps else said[-1]
    say = key
    if len(steps) == 1 and isinstance(steps[0], Condition) and rng.random() < 0.7 and not ending.say.startswith("whe"):
        subject = f" of {source.every} that {steps[0].say}"
        after = ending.say.split("%", 1)[1]
        if not after.startswith(" ") or after.startswith(" ("):
            say = f"returns {ending.say.replace('%', subject)}"
    elif len(steps) > 1 and rng.random() < 0.4:
        say = ", then ".join(said[:-1]) + " and finally " + said[-1]
    if rng.random() < 0.5:
        say = say.replace("returns the count of", "counts", 1)
    return say, key


def _counted(steps: list[Step]) -> bool:
    """Whether counting what the steps leave is a sensible question."""
    return bool(steps) and isinstance(steps[-1], Condition)


def pipeline(draw: Draw) -> Sketch:
    """Draw a pipeline and write it in a random style."""
    rng = draw.rng
    source = draw_source(rng)
    if len(source.arguments) > 1:
        draw.argument = False
    kinds: list[str] = []
    steps = _steps(draw, source.kind, kinds)
    ending = draw_ending(draw, kinds[0])
    while (ending in (LIST, TEXT) and not steps and source.code == "@x") or (ending is COUNT and not _counted(steps)):
        ending = draw_ending(draw, kinds[0])
    say, key = _description(rng, source, steps, ending)
    writer = Writer(
        rng,
        source.code,
        source.is_list,
        rng.random() < 0.5,
        guards=draw.wide and rng.random() < 0.25,
        reuses=draw.wide and rng.random() < 0.5,
        renames=draw.wide and rng.random() < 0.5,
        lean=0.0 if draw.wide else 0.7,
    )
    for step in steps:
        if isinstance(step, Order):
            writer.order(step)
        else:
            writer.elementwise(step)
    writer.end(ending)
    width = len(source.arguments)

    def meaning(*arguments: Any) -> Any:
        k = arguments[width] if len(arguments) > width else 0
        values = source.read(*arguments[:width])
        for step in steps:
            if isinstance(step, Condition):
                values = [value for value in values if step.holds(value, k)]
            elif isinstance(step, Change):
                values = [step.apply(value, k) for value in values]
            else:
                values = step.apply(values, k)
        return ending.compute(values, k)

    arguments = source.arguments + (("small",) if "@k" in key else ())
    return Sketch(say, key, writer.lines, arguments, meaning)
