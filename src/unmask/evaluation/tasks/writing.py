"""Writes a pipeline as Python in one of many styles."""

import random
from dataclasses import dataclass, field
from typing import TypeVar

from unmask.evaluation.tasks.endings import Ending
from unmask.evaluation.tasks.primitives import Change, Condition
from unmask.evaluation.tasks.sequences import Order

Form = TypeVar("Form")


@dataclass(slots=True)
class Writer:
    """Writes a pipeline as code in one style.

    Args:
        rng: chooses the style.
        current: expression of the sequence so far.
        is_list: whether that is a list (and not a range or a string).
        loops: whether the steps are written as loops.
        lean: chance that the usual form is taken without a draw, where a step can be written in several.
    """

    rng: random.Random
    current: str
    is_list: bool
    loops: bool
    lines: list[str] = field(default_factory=list)
    pending: list[Condition | Change] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["@y", "@z", "@q", "@p", "@o"])
    guards: bool = False
    reuses: bool = False
    renames: bool = False
    lean: float = 0.0

    def pick(self, forms: tuple[Form, ...]) -> Form:
        """One of several ways to write the same; the first is the usual one."""
        return forms[0] if self.rng.random() < self.lean else self.rng.choice(forms)

    def clause(self) -> tuple[str, bool]:
        """A generator clause of the pending steps and whether it does anything."""
        if not self.pending:
            return self.current, False
        element, conditions = "@v", []
        for step in self.pending:
            if isinstance(step, Condition):
                conditions.append(self.pick(step.code))
            else:
                element = self.pick(step.code)
        self.pending = []
        kept = f" if {conditions[0]}" if conditions else ""
        return f"{element} for @v in {self.current}{kept}", True

    def is_name(self) -> bool:
        """Whether the current sequence is a plain variable."""
        return len(self.current) == 2

    def name(self) -> str:
        """A new local for a list, or the present one again if the style reuses names."""
        if self.reuses and self.is_name() and self.current != "@x":
            return self.current
        return self.names.pop(0)

    def flush(self) -> None:
        """Write the pending steps as an assignment or a loop, so that `current` is a list in a variable."""
        if not self.pending:
            if not self.is_list or not self.is_name():
                name = self.names.pop(0)
                self.lines.append(f"{name} = {self.current if self.is_list else f'list({self.current})'}")
                self.current, self.is_list = name, True
            return
        if self.loops:
            name = self.names.pop(0)
            self.lines.append(f"{name} = []")
            self.loop((f"{name}.append(@e)",))
        else:
            clause, _ = self.clause()
            name = self.name()
            self.lines.append(f"{name} = [{clause}]")
        self.current, self.is_list = name, True

    def loop(self, inside: tuple[str, ...]) -> None:
        """Write a loop over the current sequence that does the pending steps and then the lines inside."""
        self.lines.append(f"for @v in {self.current}:")
        indent, element = "    ", "@v"
        last = len(self.pending) - 1
        repeated = sum(line.count("@e") for line in inside) > 1
        for index, step in enumerate(self.pending):
            if isinstance(step, Condition):
                if self.guards:
                    self.lines += [f"{indent}if {step.opposite}:".replace("@v", element), f"{indent}    continue"]
                else:
                    self.lines.append(f"{indent}if {self.pick(step.code)}:".replace("@v", element))
                    indent += "    "
                continue
            code = self.pick(step.code).replace("@v", element)
            atom = not (repeated or " if " in code or any(f"@e {sign}" in line for line in inside for sign in "%<>="))
            atom = atom and not any(
                part in line for line in inside for part in (" @e:", "* @e", "not in @e", "@e[", "@e.")
            )
            if index == last and atom and self.rng.random() < 0.7:
                element = code
            else:
                target = "@w" if self.renames else element
                self.lines.append(f"{indent}{target} = {code}")
                element = target
        self.pending = []
        self.lines += [indent + line.replace("@e", element) for line in inside]

    def elementwise(self, step: Condition | Change) -> None:
        """Take up a step; a comprehension holds one condition, then one change."""
        if (
            not self.loops
            and self.pending
            and not (isinstance(self.pending[-1], Condition) and isinstance(step, Change) and len(self.pending) == 1)
        ):
            self.flush()
        self.pending.append(step)

    def order(self, step: Order) -> None:
        """Write a step that needs the whole list."""
        self.flush()
        if step.in_place and self.current != "@x" and self.rng.random() < 0.4:
            self.lines.append(step.in_place.replace("%", self.current))
            return
        code = step.code[0].replace("%", self.current)
        name = self.name()
        self.lines.append(f"{name} = {code}")
        self.current = name

    def end(self, ending: Ending) -> None:
        """Write what the function returns."""
        plain = ending.pool in ("total", "best") and ending.before != ()
        if ending.before is not None and (not ending.code or (self.loops and (self.pending or plain))):
            self.lines += ending.before
            self.loop(self.pick(ending.inside))
            self.lines.append(f"return {ending.result}")
            return
        if [type(step) for step in self.pending] not in ([], [Condition], [Change], [Condition, Change]):
            self.flush()
        code = self.pick(ending.code)
        if "%V" in code:
            self.flush()
            code = code.replace("%V", self.current)
        elif "for @v in %L" in code:
            if self.pending:
                self.flush()
            code = code.replace("%L", self.current)
        elif code == "%L" and not self.pending:
            code = self.current if self.is_list else f"list({self.current})"
        else:
            clause, made = self.clause()
            bare = clause if made or not clause.startswith("[") else clause[1:-1]
            code = code.replace("%G", bare).replace("%L", f"[{clause}]" if made else clause)
        if self.rng.random() < 0.2 and not code.startswith("@"):
            self.lines += [f"@r = {code}", "return @r"]
        else:
            self.lines.append(f"return {code}")
