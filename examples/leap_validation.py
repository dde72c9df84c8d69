"""Does LEAP's look ahead tell right tokens from wrong ones, and what does each of our choices cost?

LEAP's rule is published, the layout of its extra slots is not, so `unmask.decoders.leap` had to choose. This script
measures the choices on the built-in model and prints two tables:

- agreement: of the slots with early < confidence <= accept that were asked again, how often the final token is the
  candidate of that moment, if both answers agreed and if they did not (the final token of plain threshold decoding, so
  that nothing was committed because of the agreement);
- variants: forward passes, computed rows and right answers of each variant beside plain threshold decoding.

    python examples/leap_validation.py --problems 48
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import unmask
from unmask.core.canvas import Canvas, ForwardPlan
from unmask.core.denoise import Step
from unmask.core.window import Window
from unmask.decoders.compound import decision_of
from unmask.decoders.leap import Leap, LookAhead
from unmask.evaluation.problems import grade, suite_problems
from unmask.evaluation.tasks import Problem
from unmask.generation import Model, encode
from unmask.models.predictor import BackbonePredictor

BASE = "threshold(threshold={accept})"
VARIANTS: dict[
    str, dict[str, Any]
] = {  # name -> fields besides the bounds; the numbers are those of the decisions to be made
    "LEAP as it is": {},
    "4 replicas see masks too": {"see_masks": True},
    "5 candidates see candidates": {"mode": "mutual"},
    "7 only slots with candidates": {"replicas": "candidates"},
    "7 no candidate needed": {"require_perturbation": False},
    "8 lower confidence counts": {"confidence": "lowest"},
    "9 base rule has to agree": {"agree_all": True},
    "10 next block's candidates": {"ahead": True},
    "11 obliged only if nothing agrees": {},
    "12 best candidate only": {"max_candidates": 1},
    "12 slots weigh like one token": {},
}
SPARING = "11 obliged only if nothing agrees"  # needs another decoder, see `Sparing`
EVEN = "12 slots weigh like one token"  # needs another predictor, see `Even`


class Even(BackbonePredictor):
    """Candidates of a slot weigh in attention like one token: -log(their number) is added to their scores."""

    def _mask(self, canvas: Canvas, work: ForwardPlan, store: object, positions: Tensor) -> Tensor | None:
        mask = super()._mask(canvas, work, store, positions)  # type: ignore[arg-type]
        if mask is None or canvas.targets is None or canvas.extra_exists is None:
            return mask
        places = canvas.positions[:, canvas.num_answer_slots :]
        keys = (canvas.targets < 0) & canvas.extra_exists
        number = ((places[:, :, None] == places[:, None]) & keys[:, None]).sum(-1).clamp_min(1)
        bias = torch.zeros(canvas.tokens.shape, device=places.device)
        bias[:, canvas.num_answer_slots :] = torch.where(keys, -number.float().log(), 0.0)
        lowest = torch.finfo(bias.dtype).min
        return torch.where(mask, bias[:, None], lowest)


@dataclass
class Watched:
    """One slot that was asked again: what was said, and what became of it."""

    row: int
    slot: int
    token: int
    agreed: bool
    confidence: float


@dataclass(frozen=True, slots=True)
class Watching(Leap):
    """Lays everything out and commits nothing early: plain threshold decoding with an observer."""

    def decide(self, state, window: Window, prediction, memory: LookAhead):  # type: ignore[no-untyped-def]
        plain = prediction.without_extras()
        move = self.rule.decide(state, window, plain, memory.base)
        return move, self._look_ahead(state.masked & ~move.commit, plain, state, memory.base)  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True)
class Sparing(Leap):
    """Commits what the base rule commits only because it is obliged to, only if nothing was committed early either."""

    def decide(self, state, window: Window, prediction, memory: LookAhead):  # type: ignore[no-untyped-def]
        move, after = Leap.decide(self, state, window, prediction, memory)
        plain = prediction.without_extras()
        base, _ = decision_of(self.rule, state, window, plain, memory.base)
        free, _ = decision_of(self.rule, state, replace(window, must=window.must & False), plain, memory.base)
        early = (move.commit & ~base.commit).any(-1, keepdim=True)
        commit = move.commit & ~(base.commit & ~free.commit & early)
        return replace(move, commit=commit), self._look_ahead(state.masked & ~commit, plain, state, after.base)


def watched(step: Step, early: float, accept: float) -> Iterator[Watched]:
    prediction, size = step.prediction, step.before.num_slots
    if prediction.targets is None:
        return
    again = prediction.echo(prediction.tokens, -1)
    tokens, confidence = prediction.tokens[:, :size], prediction.confidence[:, :size]
    between = step.before.masked & step.window.open & (again >= 0) & (confidence > early) & (confidence < accept)
    for place, slot in between.nonzero().tolist():
        token, said = int(tokens[place, slot]), int(again[place, slot])
        row = int(step.row_ids[place])
        yield Watched(row, slot, token, token == said, float(confidence[place, slot]))


def agreement(model: Model, problems: list[Problem], options: argparse.Namespace, **fields: Any) -> list[str]:
    """Lines of the agreement table, one per band of confidence."""
    decoder = Watching(options.accept, options.early, options.candidate, **fields)
    seen: list[tuple[float, bool, bool]] = []  # confidence, agreed, stayed
    for batch in batches(problems, options.batch):
        found: list[Watched] = []
        final: dict[int, Tensor] = {}
        prompts = [encode(model, problem.prompt) for problem in batch]
        for step in unmask.denoise(model, prompts, decoder=decoder, length=options.length):
            found += watched(step, 0.3, options.accept)
            final |= {int(row): step.after.tokens[place] for place, row in enumerate(step.row_ids)}
            end = {row: ended(tokens, prompts[row], model.facts.end_ids) for row, tokens in final.items()}
        kept = [one for one in found if one.slot <= end[one.row]]  # the tail behind the end token proves nothing
        seen += [(one.confidence, one.agreed, int(final[one.row][one.slot]) == one.token) for one in kept]
    bands = [(options.early, options.accept), (0.3, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9)]
    return [band_line(low, high, [one for one in seen if low < one[0] <= high]) for low, high in bands]


def ended(tokens: Tensor, prompt: list[int | None], end_ids: tuple[int, ...]) -> int:
    """Slot of the answer's first end token."""
    return next((slot for slot in range(len(prompt), len(tokens)) if int(tokens[slot]) in end_ids), len(tokens))


def band_line(low: float, high: float, seen: list[tuple[float, bool, bool]]) -> str:
    cells = []
    for agreed in (True, False):
        stayed = [one[2] for one in seen if one[1] is agreed]
        cells.append(f"{100 * sum(stayed) / max(len(stayed), 1):5.1f} | {len(stayed):5d}")
    return f"| {low:.2f}-{high:.2f} | {' | '.join(cells)} |"


def batches(problems: list[Problem], size: int) -> Iterator[list[Problem]]:
    for first in range(0, len(problems), size):
        yield problems[first : first + size]


@dataclass
class Result:
    right: list[bool]
    nfe: float
    rows: float
    seconds: float


def answer(model: Model, problems: list[Problem], decoder: str | Leap, options: argparse.Namespace) -> Result:
    begun = time.perf_counter()
    done = unmask.generate(
        model,
        [problem.prompt for problem in problems],
        decoder=decoder,
        length=options.length,
        batch_size=options.batch,
        record=False,
    )
    seconds = time.perf_counter() - begun
    right = grade(problems, [one.text for one in done])
    count = len(done)
    return Result(right, sum(one.nfe for one in done) / count, sum(one.rows_computed for one in done) / count, seconds)


def variant_line(name: str, result: Result, base: Result) -> str:
    gained = sum(now and not before for now, before in zip(result.right, base.right, strict=True))
    lost = sum(before and not now for now, before in zip(result.right, base.right, strict=True))
    share = 100 * sum(result.right) / len(result.right)
    return (
        f"| {name} | {share:.1f} | +{gained} -{lost} | {result.nfe:.2f} | {result.nfe / base.nfe:.3f} "
        f"| {result.rows:.0f} | {result.seconds:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin", help="name or folder, as for unmask.load")
    parser.add_argument("--task", default="functions")
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--accept", type=float, default=0.9, help="phi")
    parser.add_argument("--early", type=float, default=0.7, help="tau")
    parser.add_argument("--candidate", type=float, default=0.2, help="eta")
    parser.add_argument("--only", default="", help="run the variants whose name contains this")
    parser.add_argument("--no-agreement", action="store_true", help="skip the first table")
    options = parser.parse_args()
    model = unmask.load(options.model)
    problems = suite_problems("builtin", [options.task], options.problems)
    if not options.no_agreement:
        layouts: dict[str, dict[str, Any]] = {
            "isolated": {},
            "see_masks": {"see_masks": True},
            "mutual": {"mode": "mutual"},
        }
        for name, fields in layouts.items():
            print(f"\n{name}: the final token is the candidate of the moment, %\n")
            print("| confidence | agreed, % | slots | not agreed, % | slots |\n| --- | ---: | ---: | ---: | ---: |")
            print("\n".join(agreement(model, problems, options, **fields)), flush=True)
    base = answer(model, problems, BASE.format(accept=options.accept), options)
    print("\n| variant | % right | against base | NFE | / base | rows | s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(variant_line(f"threshold {options.accept}", base, base), flush=True)
    for bound in ((options.accept + options.early) / 2, options.early):  # what plain thresholds pay for fewer steps
        lower = answer(model, problems, BASE.format(accept=bound), options)
        print(variant_line(f"threshold {bound:g}", lower, base), flush=True)
    even = replace(model, predictor=Even(model.predictor.backbone, model.facts))  # type: ignore[attr-defined]
    for name, fields in VARIANTS.items():
        if options.only in name:
            kind = Sparing if name == SPARING else Leap
            decoder = kind(options.accept, options.early, options.candidate, **fields)
            result = answer(even if name == EVEN else model, problems, decoder, options)
            print(variant_line(name, result, base), flush=True)


if __name__ == "__main__":
    main()
