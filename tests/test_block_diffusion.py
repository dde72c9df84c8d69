"""Block diffusion on block-causal models: one block after another, pipelined, cached, and what the model then sees."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import contract
import unmask
from unmask.caches import CACHES
from unmask.core.denoise import Step, denoise
from unmask.core.schedules import SCHEDULES, Pipelined, Schedule, Sequential, Whole
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.threshold import Threshold
from unmask.generation import Model
from unmask.models.guidance import Guided
from unmask.models.predictor import BackbonePredictor

FAMILIES = ["llada", "dream"]
CAUSAL: dict[str, Any] = {"attention": "block_causal"}
IN_TURN = Pipelined(4, add=1.0, force=1.0)


def decoded(
    family: str, decoder: Decoder, schedule: Schedule, cache: str = "none", rows: tuple[int, ...] = (0, 1, 2)
) -> list[Step]:
    state = contract.first_state(family, rows)
    return list(contract.steps(family, state, decoder, schedule, CACHES.make(cache), **CAUSAL))


def answers(steps: list[Step]) -> dict[int, list[int]]:
    """Tokens of every row's answer, as its last step left them."""
    last = {row: (one.after, place) for one in steps for place, row in enumerate(one.row_ids.tolist())}
    return {row: state.tokens[place][state.answer[place]].tolist() for row, (state, place) in last.items()}


# A plain loop --------------------------------------------------------------------------------------------------------


@dataclass
class Serial:
    """Serial block diffusion over one prompt, written from its description: no canvas, no plan, no store.

    Each pass runs everything up to the end of the current block. The passes of the common form are counted beside it: a
    prefill, a step per commit, and a pass per finished block that stores it; with that pass merged into the first step
    of the next block, and the prefill into the first step of all, a block of n slots costs n rows per step and n more.
    """

    family: str
    size: int
    bound: float
    align: str = "prompt"

    def run(self, prompt: list[int], length: int) -> tuple[list[int], int, int]:
        """Answer, steps, and rows that a merged cache computes."""
        facts = contract.model(self.family).facts
        tokens, begin = [*prompt, *[facts.mask_id] * length], len(prompt)
        blocks = [self.block(slot, begin) for slot in range(len(tokens))]
        steps, rows = 0, blocks.index(blocks[begin])  # rows of the prompt outside the first block
        for block in sorted(set(blocks[begin:])):
            end = len(tokens) - blocks[::-1].index(block)
            inside = [slot for slot in range(begin, end) if blocks[slot] == block]
            left = list(inside)
            while left:
                scores = self.scores(tokens[:end], blocks[:end], left)
                sure = [slot for slot in left if float(scores[slot].max()) >= self.bound]
                for slot in sure or [max(left, key=lambda slot: (float(scores[slot].max()), -slot))]:
                    tokens[slot] = int(scores[slot].argmax())
                    left.remove(slot)
                steps += 1
                rows += blocks.count(block)
            rows += blocks.count(block) if end < len(tokens) else 0
        return tokens[begin:], steps, rows

    def block(self, slot: int, begin: int) -> int:
        return slot // self.size if self.align == "absolute" else max((slot - begin) // self.size, -1)

    def scores(self, tokens: list[int], blocks: list[int], about: list[int]) -> dict[int, Tensor]:
        """Probabilities at some slots, the mask ruled out."""
        model = contract.model(self.family)
        assert isinstance(model.predictor, BackbonePredictor)
        order = torch.tensor(blocks)
        with torch.inference_mode():
            raw = model.predictor.backbone(torch.tensor([tokens]), mask=(order[None, :] <= order[:, None])[None])[0]
        raw = raw.clone()
        raw[:, model.facts.mask_id] = float("-inf")
        return {slot: raw[max(slot - model.facts.shift, 0)].softmax(-1) for slot in about}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("align", "size"), [("prompt", 4), ("absolute", 4), ("absolute", 5)])
def test_blocks_in_turn_are_plain_block_diffusion(family: str, align: Any, size: int) -> None:
    """A ragged batch with a store against one prompt at a time without: the same tokens, steps and rows."""
    serial, schedule = (
        Serial(family, size, 0.6, align),
        Pipelined(size, add=1.0, force=1.0, align=align, end_stops=False),
    )
    steps = decoded(family, Threshold(0.6), schedule, "finished-blocks")
    found = answers(steps)
    for row in range(3):
        tokens, count, rows = serial.run(contract.PROMPTS[row], contract.LENGTHS[row])
        places = [(one, one.row_ids.tolist().index(row)) for one in steps if row in one.row_ids.tolist()]
        assert (found[row], len(places)) == (tokens, count)
        spoken = [speaks_for_its_block(one, place) for one, place in places]
        assert sum(int(one.rows_computed[place]) for one, place in places) == rows + sum(spoken)
        assert any(spoken) <= (family == "dream")


def speaks_for_its_block(step: Step, place: int) -> bool:
    """Was a frozen row run again because it speaks for the first slot of its block? Not in a pass that stores one."""
    first = int(step.prediction.work.asked[place, 0])
    assert step.window.blocks is not None
    blocks = step.window.blocks[place]
    opens = first > 0 and int(blocks[first]) != int(blocks[first - 1])
    stored = int(step.before.step[place]) == 0 or int(step.window.age[place]) == 0
    return step.before.shift == 1 and opens and not stored


# One schedule and another --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("align", ["prompt", "absolute"])
@pytest.mark.parametrize(
    "spec", ["threshold(threshold=0.6)", "low-confidence", pytest.param("factor", marks=pytest.mark.slow)]
)
def test_blocks_in_turn_equal_sequential_blocks(family: str, align: Any, spec: str) -> None:
    """What is not there yet cannot be seen either way; only the rows of later blocks are saved."""
    decoder = DECODERS.make(spec)
    one = decoded(family, decoder, Sequential(4, align=align))
    other = decoded(family, decoder, Pipelined(4, add=1.0, force=0.3, align=align, end_stops=False))
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.after.tokens, b.after.tokens)
        assert (b.rows_computed <= a.rows_computed).all()
    assert sum(int(b.rows_computed.sum()) for b in other) < sum(int(a.rows_computed.sum()) for a in one)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_of_one_are_autoregressive(family: str) -> None:
    """A mask asks behind the text so far; the cached pass runs the last token and the mask."""
    steps = decoded(family, Threshold(0.9), Pipelined(1, add=1.0, end_stops=False), "finished-blocks", rows=(1,))
    commits = [one.move.commit[0].nonzero()[:, 0].tolist() for one in steps]
    begin, length = len(contract.PROMPTS[1]), contract.LENGTHS[1]
    assert commits == [[slot] for slot in range(begin, begin + length)]
    assert [int(one.rows_computed) for one in steps] == [begin + 1] + [2] * (length - 1)
    serial, text = Serial(family, 1, 0.9), list(contract.PROMPTS[1])
    for _ in range(length):
        blocks = [serial.block(slot, begin) for slot in range(len(text) + 1)]
        mask = contract.model(family).facts.mask_id
        text.append(int(serial.scores([*text, mask], blocks, [len(text)])[len(text)].argmax()))
    assert answers(steps)[0] == text[begin:]


@pytest.mark.parametrize("schedule", [IN_TURN, Pipelined(4, add=0.5, force=1.0), Pipelined(4, add=0.25, force=0.5)])
def test_an_unreachable_threshold_commits_one_slot_per_obliged_block(schedule: Pipelined) -> None:
    several = 0
    for one in decoded("llada", Threshold(1.1), replace(schedule, end_stops=False)):
        assert one.window.group is not None
        for place in range(len(one.row_ids)):
            obliged = one.window.group[place][one.window.must[place]].unique()
            assert one.window.group[place][one.move.commit[place]].tolist() == obliged.tolist()
            several += len(obliged) > 1
    assert (several > 0) == (schedule.force < 1.0)


def test_one_block_is_threshold_decoding_behind_a_prompt_that_does_not_see_it() -> None:
    one = decoded("llada", Threshold(0.6), Pipelined(32, end_stops=False), "finished-blocks")
    other = decoded("llada", Threshold(0.6), Sequential(32))
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.after.tokens, b.after.tokens)
    blind = contract.run("llada", contract.first_state("llada"), Threshold(0.6), Whole(), CACHES.make("none"))
    assert [contract.answer(blind, row)[0] for row in range(3)] != list(answers(one).values())


def test_an_appended_block_changes_nothing_that_is_said_about_earlier_ones() -> None:
    """The same canvas with its second block there and not there yet."""
    early, late = Pipelined(4, add=0.0), Pipelined(4, add=1.0)
    state = contract.first_state("llada", (0,))
    first = next(contract.steps("llada", state, Threshold(0.99), late, CACHES.make("none"), **CAUSAL))
    pair = []
    for schedule in (early, late):
        steps = contract.steps("llada", first.after, Threshold(0.99), schedule, CACHES.make("none"), **CAUSAL)
        pair.append(next(steps))
    asked = pair[1].prediction.known[0]
    assert pair[0].prediction.known.sum() == asked.sum() + 4
    confidence = [one.prediction.confidence[0][asked] for one in pair]
    assert torch.allclose(*confidence, atol=1e-12)


def test_the_end_of_the_prompt_in_the_first_absolute_block_is_seen_and_never_changed() -> None:
    """Prompt of 6, blocks of 4: slots 4 and 5 are given, and attend to the masks behind them."""
    schedule = Pipelined(4, add=1.0, align="absolute", end_stops=False)
    steps = decoded("llada", Threshold(0.6), schedule, "finished-blocks", rows=(0,))
    assert steps[0].window.open[0].nonzero()[:, 0].tolist() == [6, 7]
    for one in steps:
        assert one.after.tokens[0, :6].tolist() == contract.PROMPTS[0]
    opening = [int(one.rows_computed) for one in steps if not one.before.committed_at[0, 8:].max() >= 0]
    assert opening[0] == 8 and set(opening[1:]) <= {4, 8}  # slots 0 to 3 are stored at once, 4 and 5 with their block


# The model's blocks follow the schedule ------------------------------------------------------------------------------

TEXTS = ["12+3=?", "sort: 3 1 2"]


def causal(length: int, family: str = "llada") -> Model:
    folder = contract.REFERENCE / "ckpt" / family
    return unmask.load(folder, device="cpu", dtype="float64", attention="block_causal", block_length=length)


@pytest.mark.parametrize("schedule", [Sequential(4), Sequential(5, align="absolute"), Pipelined(4)])
def test_a_block_causal_model_sees_blocks_as_the_schedule_cuts_them(schedule: Any) -> None:
    model = causal(16)
    facts = model.in_blocks(schedule).facts
    assert (facts.block_length, facts.block_alignment) == (schedule.block_length, schedule.align)
    assert model.in_blocks(schedule).predictor.facts == facts
    assert model.facts.block_length == 16  # the model itself stays as it is
    assert model.in_blocks(Sequential(16)) is model


def test_a_bidirectional_model_has_no_blocks_to_follow(llada: Model) -> None:
    assert llada.in_blocks(Sequential(4)) is llada


def test_following_costs_no_second_set_of_weights() -> None:
    model = causal(16)
    one, other = model.predictor, model.guided(0.5).in_blocks(Sequential(4)).predictor
    assert isinstance(one, BackbonePredictor) and isinstance(other, Guided)
    assert isinstance(other.inner, BackbonePredictor) and other.inner.backbone is one.backbone
    assert other.facts.block_length == other.inner.facts.block_length == 4


@pytest.mark.parametrize("spec", ["sequential(block_length=4)", "pipelined(block_length=4, align='absolute')"])
@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_generate_does_not_depend_on_the_block_length_a_model_was_loaded_with(spec: str, guidance: float) -> None:
    """It is the schedule's that counts, under guidance too; and the exact cache is exact there."""
    schedule = SCHEDULES.make(spec)
    options: dict[str, Any] = {"schedule": schedule, "length": 12, "guidance": guidance, "decoder": "threshold"}
    loaded = {length: unmask.generate(causal(length), TEXTS, **options) for length in (4, 16)}
    cached = unmask.generate(causal(16), TEXTS, cache="finished-blocks", **options)
    for one, other, third in zip(loaded[4], loaded[16], cached, strict=True):
        assert one.canvas == other.canvas == third.canvas
        assert one.nfe == other.nfe == third.nfe
        assert third.rows_computed < one.rows_computed


def test_the_block_length_matters() -> None:
    """Or the test above would say nothing: with the model's own blocks of 16 the distributions are others."""
    state = contract.first_state("llada", (0,))
    parts: dict[str, Any] = {"schedule": Sequential(4), "cache": CACHES.make("none")}
    one, other = (
        next(denoise(predictor, state, Threshold(), **parts)).prediction.confidence
        for predictor in (causal(16).predictor, causal(16).in_blocks(Sequential(4)).predictor)
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_a_stopped_row_is_complete_and_says_so() -> None:
    """Blocks that an end token kept from being appended are closed with it, unless every slot was asked for."""
    model = causal(4)
    options: dict[str, Any] = {"schedule": "pipelined(block_length=4, add=0.5, force=0.75)", "length": 24}
    texts = [f"{a}+{a + 1}=?" for a in (12, 18, 19, 20)]
    stopped, full = (unmask.generate(model, texts, stop=stop, **options) for stop in ("tail", "none"))
    shorter = 0
    for one, other in zip(stopped, full, strict=True):
        assert one.text == other.text and one.nfe <= other.nfe
        assert one.finish_reason in ("stop", "length") and model.facts.mask_id not in one.canvas
        shorter += model.facts.mask_id in other.canvas
    assert shorter > 0
