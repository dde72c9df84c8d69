"""Traces recorded from the published decoders, and our parts run in their place (see docs/compat.md)."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from conftest import REFERENCE
from unmask.caches import CACHES
from unmask.core.denoise import Step, denoise
from unmask.core.sampling import Sampling
from unmask.core.schedules import Schedule
from unmask.core.state import DenoisingState
from unmask.core.stopping import Stopping
from unmask.decoders import DECODERS, Decoder
from unmask.models.guidance import Guided
from unmask.models.predictor import BackbonePredictor

Case = dict[str, Any]
DOUBLE = Sampling(precision=torch.float64)


@dataclass(frozen=True)
class Parts:
    """Our translation of a published call."""

    decoder: str | Decoder
    schedule: Schedule
    length: int
    cache: str = "none"
    guidance: float = 0.0
    sampling: Sampling = field(default_factory=Sampling)
    blocks: int | None = None  # the model is block-causal, with blocks of so many slots
    given: Mapping[int, int] = field(default_factory=dict)  # answer offset -> token that stands there from the start
    end_ids: tuple[int, ...] | None = None  # tokens that end an answer; None = all that the model knows


@cache
def recorded(name: str) -> dict[str, Any]:
    return json.loads((REFERENCE / "traces" / f"{name}.json").read_text())  # type: ignore[no-any-return]


@cache
def unbanned(family: str, blocks: int | None = None) -> unmask.Model:
    """The reference model with the mask token allowed, as in the published code."""
    pattern = {} if blocks is None else {"attention": "block_causal", "block_length": blocks}
    model = unmask.load(REFERENCE / "ckpt" / family, device="cpu", **pattern)  # type: ignore[arg-type]
    assert isinstance(model.predictor, BackbonePredictor)
    facts = replace(model.facts, banned_ids=())
    return replace(model, predictor=BackbonePredictor(model.predictor.backbone, facts), facts=facts)


def settings(names: Iterable[str]) -> list[Any]:
    """One test per file and parameter set; the first of each file belongs to the fast set."""
    tests = []
    for name in names:
        seen: list[dict[str, Any]] = []
        for case in recorded(name)["cases"]:
            if case["params"] not in seen:
                seen.append(case["params"])
        for number, params in enumerate(seen):
            marks = [pytest.mark.slow] if number else []
            tests.append(pytest.param(name, params, id=f"{name}-{number}", marks=marks))
    return tests


def published_tie_order(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """torch.topk decides ties, as in the published samplers (ours: lowest slot first)."""
    chosen = torch.zeros_like(among)
    for row in range(len(score)):
        number = int(min(count[row], among[row].sum()))
        chosen[row, torch.topk(score[row].masked_fill(~among[row], float("-inf")), number).indices] = True
    return chosen


@dataclass
class Decoded:
    """One row's answer slots, and per forward the sorted [offset, token] pairs that changed (a mask: taken back)."""

    output: list[int]
    steps: list[list[list[int]]]

    def equals(self, case: Case) -> bool:
        if case.get("fragile"):
            same = self.output == case["output"] and len(self.steps) == case["nfe"]
            return same or case["fragile_output"]
        return self.output == case["output"] and self.steps == [sorted(step) for step in case["traj"]]


def steps_of(family: str, parts: Parts, prompts: list[list[int]]) -> Iterator[Step]:
    model = unbanned(family, parts.blocks)
    canvases = [[*prompt, *(parts.given.get(offset) for offset in range(parts.length))] for prompt in prompts]
    facts = model.facts
    return denoise(
        Guided(model.predictor, parts.guidance) if parts.guidance else model.predictor,
        DenoisingState.from_canvas(
            canvases,
            mask_id=facts.mask_id,
            end_ids=facts.end_ids if parts.end_ids is None else parts.end_ids,
            shift=facts.shift,
        ),
        DECODERS.make(parts.decoder),
        schedule=parts.schedule,
        cache=CACHES.make(parts.cache),
        sampling=parts.sampling,
        stop=Stopping("none"),
    )


def decode(family: str, parts: Parts, prompts: list[list[int]]) -> list[Decoded]:
    """All prompts in one ragged batch."""
    rows = [Decoded([], []) for _ in prompts]
    for step in steps_of(family, parts, prompts):
        changed = step.move.commit if step.move.revoke is None else step.move.commit | step.move.revoke
        for place, row in enumerate(step.row_ids.tolist()):
            begin = len(prompts[row])
            slots = changed[place].nonzero()[:, 0].tolist()
            rows[row].steps.append([[slot - begin, int(step.after.tokens[place, slot])] for slot in slots])
            rows[row].output = step.after.tokens[place][step.after.exists[place]].tolist()[begin:]
    return rows


def assert_reproduced(
    name: str,
    params: dict[str, Any],
    parts: Parts,
    *,
    differing: int = 0,
    prepare: Callable[[Case], Case] = lambda case: case,
    skip: Collection[str] = (),
) -> None:
    """Every recorded case of a setting is what our parts give, token for token, forward for forward.

    Where float32 scores tie, the rounding of a batch may decide: such a row is decoded alone, like the recorded one,
    and then has to be equal.

    Args:
        name, params: the setting.
        parts: our translation.
        differing: how many rows of the batch may need that second try.
        prepare: changes a recorded case before it is compared (say why in docs/compat.md).
        skip: names of cases that are not compared (say why in docs/compat.md).
    """
    file, family = recorded(name), name.split("/")[0]
    cases = [prepare(case) for case in file["cases"] if case["params"] == params and "error" not in case]
    cases = [case for case in cases if case["id"] not in skip]
    assert cases
    prompts = [file["prompts"][case["prompt"]] for case in cases]
    decoded = decode(family, parts, prompts)
    unequal = [row for row, case in enumerate(cases) if not decoded[row].equals(case)]
    for row in unequal:
        alone = decode(family, parts, [prompts[row]])[0]
        assert alone.equals(cases[row]), (cases[row]["id"], alone, cases[row]["traj"])
    assert len(unequal) <= differing
    assert all(
        one.output.count(file["mask_id"]) == case["masks_left"] for one, case in zip(decoded, cases, strict=True)
    )
    assert any(case["traj"] for case in cases if not case.get("fragile")), "something is compared step by step"
