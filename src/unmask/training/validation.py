"""Held-out problems, decoded by a model in training: how many it solves and what that costs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unmask.evaluation.problems import grade
from unmask.evaluation.tasks import Problem
from unmask.generation import Model, generate
from unmask.models.backbone import Backbone
from unmask.models.facts import ModelFacts
from unmask.models.predictor import BackbonePredictor
from unmask.models.text import Text


@dataclass(frozen=True, slots=True)
class Validation:
    """Measures a model; what `loop.Evaluation` asks for.

    Args:
        problems: what to answer.
        text: tokenizer and template.
        facts: of the model; how it attends is read from the model itself.
        decoder: a spec, or None for the usual one.
        length: answer slots, tokens.
        batch_size: problems decoded together.
    """

    problems: Sequence[Problem]
    text: Text
    facts: ModelFacts
    decoder: str | None = None
    length: int = 128
    batch_size: int = 16

    def __call__(self, backbone: Backbone) -> dict[str, float]:
        """Accuracy (0..1), of every task if there are several, and mean forward passes of an answer."""
        config = backbone.config
        facts = replace(self.facts, attention=config.attention, block_length=config.block_length)
        predictor = BackbonePredictor(backbone, facts)
        model = Model(predictor, facts, self.text, "a model in training", predictor.device)
        prompts = [problem.prompt for problem in self.problems]
        answers = generate(
            model, prompts, decoder=self.decoder, length=self.length, batch_size=self.batch_size, record=False
        )
        by_task: dict[str, list[bool]] = defaultdict(list)
        for problem, right in zip(self.problems, grade(self.problems, [one.text for one in answers]), strict=True):
            by_task[problem.task].append(right)
        found = {"eval/accuracy": sum(map(sum, by_task.values())) / len(self.problems)}
        if len(by_task) > 1:
            found |= {f"eval/accuracy/{task}": sum(rights) / len(rights) for task, rights in by_task.items()}
        return found | {"eval/forwards": sum(one.nfe for one in answers) / len(answers)}
