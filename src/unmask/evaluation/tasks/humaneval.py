"""HumanEval: Python functions from a signature and a docstring.

Source: Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374). Zero examples. In style "raw"
the model goes on behind the docstring; in style "chat" it is asked for the whole function, and an answer that is only
the body counts as well. Deviates: the wording of the chat prompt.
"""

from dataclasses import dataclass
from typing import ClassVar

from unmask.evaluation.sandbox import Program
from unmask.evaluation.tasks.base import Problem
from unmask.evaluation.tasks.code import blocks, completed, defined, program_of
from unmask.evaluation.tasks.published import Coded
from unmask.evaluation.tasks.sources import Hub, Record


@dataclass(frozen=True, slots=True)
class HumanEval(Coded):
    """Python functions from a signature and a docstring; the answer is run."""

    name = "humaneval"
    hub: ClassVar[Hub | None] = Hub("openai/openai_humaneval")
    files: ClassVar[tuple[str, ...]] = ("HumanEval.jsonl*", "*test*", "*")
    length: ClassVar[int] = 512

    def read(self, record: Record) -> Problem:
        """A record with "prompt", "canonical_solution", "test", "entry_point" and "task_id"."""
        extra = {"test": str(record["test"])}
        head, answer, name = record["prompt"], record["canonical_solution"], record["entry_point"]
        return Problem(self.name, head, answer, record["task_id"], entry_point=name, extra=extra)

    def question(self, problem: Problem) -> str:
        """The head itself for a base model; a request around it for a chat."""
        if self.style == "raw":
            return problem.prompt
        return (
            "Complete the following Python function. Answer with the whole function in one code block.\n"
            f"```python\n{problem.prompt.rstrip()}\n```"
        )

    def program(self, problem: Problem, text: str) -> Program:
        """The function in the text, or the head with the text as its body."""
        head, name = problem.prompt, problem.entry_point
        whole = program_of(text, {name})
        if name in defined(whole):
            source = f"{head}    pass\n\n\n{whole}"  # the head brings imports and helpers along
        else:
            source = completed(head, (blocks(text) or [text])[0]) or head + text
        checks = f"{problem.extra['test']}\n\ncheck({name})\n"
        return Program(source, checks, helpers=f"{head}    pass\n", entry_points=(name,))
