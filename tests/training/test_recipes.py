"""The recipes that make models faster: what each of them trains, and what becomes of it."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training.helpers import END, MASK, clean_batch, copy_batches, tiny_config
from training.learning import gained, masked_for, mean_loss
from unmask.models.adapters import LoraConfig, adapter_parameters, attach
from unmask.models.backbone import Backbone
from unmask.models.checkpoints import FAMILIES
from unmask.models.tiny import tiny_backbone
from unmask.training.corruption import CleanBatch, MaskedBatch
from unmask.training.loop import RunSettings, Schedule, TrainingError, TrainingRun, train
from unmask.training.objectives import Distillation, LossSum
from unmask.training.recipes.d2f import D2FOptions, d2f
from unmask.training.recipes.dparallel import DREAM, DParallelOptions, dparallel
from unmask.training.recipes.wino_plus import WinoPlusOptions, wino_plus
from unmask.training.replay import ALWAYS, DecodedAnswer, TrajectorySamples

NAMES = ("d2f", "dparallel", "wino-plus")
CONSTANT = Schedule(warmup_steps=0, decay_start=1.0)


def model_of(seed: int = 0, *, adapted: bool = False, **changes: Any) -> Backbone:
    """A model whose attention does something, in float32; with an adapter that does nothing yet if wanted."""
    config = tiny_config(tied=False, normed_embedding=False, **changes)
    model = tiny_backbone(seed, **{field.name: getattr(config, field.name) for field in fields(config)})
    model.requires_grad_(True)
    if adapted:
        lora = LoraConfig(rank=4, alpha=4.0, targets="all-linear")
        attach(model, lora, FAMILIES["llada"].tensor_names(model.config))
    return model


def decoded_copies(count: int = 12) -> list[DecodedAnswer]:
    """Answers that repeat their prompt, as if decoded two slots a step from the left."""
    answers = []
    for row in range(count):
        words = torch.randint(1, 20, (6,), generator=torch.Generator().manual_seed(row))
        tokens = torch.cat((words, torch.tensor([30]), words, torch.tensor([END, END])))
        steps = torch.arange(8) // 2
        answers.append(DecodedAnswer(tokens, torch.cat((torch.full((7,), ALWAYS), steps)), 7, END))
    return answers


def samples(batch_tokens: int = 96) -> TrajectorySamples:
    return TrajectorySamples(decoded_copies(), batch_tokens=batch_tokens, seed=0)


def run_of(name: str, model: Backbone, *, shift: int = 0, rate: float = 3e-3, **settings: Any) -> TrainingRun:
    chosen = RunSettings(**({"steps": 8, "schedule": CONSTANT, "ema_decay": 0.0} | settings))
    if name == "d2f":
        options = D2FOptions(block_length=4, rate=rate)
        return d2f(model, copy_batches(), chosen, mask_id=MASK, shift=shift, options=options)
    if name == "dparallel":
        halved = DParallelOptions(block_length=4, rate=rate)
        return dparallel(model, copy_batches(), chosen, mask_id=MASK, shift=shift, options=halved)
    replayed = WinoPlusOptions(block_length=4, rate=rate)
    return wino_plus(model, samples(), chosen, mask_id=MASK, shift=shift, options=replayed)


def copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "adapter"])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_lower_the_loss_on_the_same_masks(name: str, shift: int, adapted: bool) -> None:
    run = run_of(name, model_of(adapted=adapted), shift=shift, steps=15, rate=2e-2 if adapted else 5e-3)
    assert gained(run) > 0.05


@pytest.mark.parametrize("name", NAMES)
def test_only_the_adapter_is_trained_where_there_is_one(name: str) -> None:
    model = model_of(adapted=True)
    before = copies(model.state_dict())
    run = run_of(name, model, steps=3)
    trained = [id(p) for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(trained) == sorted(map(id, adapter_parameters(model)))
    list(train(run))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {key for key in before if "lora" in key}
    assert all((parameter.grad is None) != parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_trained_where_there_is_no_adapter(name: str) -> None:
    model = model_of()
    before = copies(model.state_dict())
    list(train(run_of(name, model, steps=3)))
    assert not [key for key, value in model.state_dict().items() if torch.equal(value, before[key])]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_do_not_depend_on_how_a_batch_is_split(name: str) -> None:
    """Sums over the same rows, divided once: two rows of a halved block belong together."""
    run = run_of(name, model_of())
    (batch,) = masked_for(run)
    step = 2 if name == "dparallel" else 1
    rows, whole = len(batch.tokens), gradient(run, [batch])
    assert rows >= 3 * step
    for bounds in ([0, step, rows], list(range(0, rows + 1, step))):
        parts = [part(batch, slice(*pair)) for pair in pairwise(bounds)]
        assert torch.allclose(gradient(run, parts), whole, rtol=1e-3, atol=1e-6)
    assert whole.abs().max() > 1e-3


def part(batch: MaskedBatch, rows: slice) -> MaskedBatch:
    return MaskedBatch(*(getattr(batch, field.name)[rows] for field in fields(batch)))


def gradient(run: TrainingRun, batches: Sequence[MaskedBatch]) -> Tensor:
    run.model.zero_grad()
    count = 0
    for batch in batches:
        loss: LossSum = run.objective(run.model, batch)
        loss.total.backward()  # type: ignore[no-untyped-call]
        count += loss.count
    return torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]) / count


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    """The second sitting begins with the starting weights again: the teacher is made of them."""
    kept: dict[str, Any] = {"steps": 6, "checkpoint_minutes": 0.0}
    whole = [one.loss for one in train(run_of(name, model_of(), **kept))]
    first = train(run_of(name, model_of(), folder=tmp_path, **kept))
    losses = [next(first).loss for _ in range(3)]
    first.close()  # type: ignore[attr-defined]
    losses += [one.loss for one in train(run_of(name, model_of(), folder=tmp_path, **kept), resume=True)]
    assert losses == whole


# D2F -----------------------------------------------------------------------------------------------------------------


class Once:
    """One clean batch, for ever."""

    state: Any = None

    def __init__(self, clean: CleanBatch) -> None:
        self.clean = clean

    def take(self, count: int) -> list[CleanBatch]:
        return [self.clean] * count


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "adapter"])
def test_a_student_that_sees_what_its_teacher_sees_has_nothing_to_learn(adapted: bool) -> None:
    """No prompt and one block: the loss is the teacher's entropy over the ratio, and the gradient vanishes."""
    model = model_of(adapted=adapted).double()
    options = D2FOptions(block_length=64)
    run = d2f(model, Once(clean_batch(start=0)), RunSettings(steps=1), mask_id=MASK, options=options)
    (batch,) = masked_for(run)
    assert gradient(run, [batch]).abs().max() < 1e-6
    with torch.no_grad():
        logs = model(batch.tokens).float().log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1)
    assert mean_loss(run, [batch]) == pytest.approx(float((entropy * batch.weights)[batch.masked].mean()), rel=1e-4)
    blind = replace(batch, answer_starts=torch.full((6,), 20))  # two blocks: the first no longer sees the second
    assert gradient(run, [blind]).abs().max() > 1e-3


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "adapter"])
def test_the_teacher_is_the_model_as_it_was(adapted: bool) -> None:
    model = model_of(adapted=adapted)
    tokens = torch.arange(1, 13)[None]
    with torch.no_grad():
        before = model(tokens)
    run = run_of("d2f", model, steps=3)
    list(train(run))
    assert isinstance(run.objective, Distillation) and run.objective.teacher is not None
    with torch.no_grad(), run.objective.teacher() as teacher:
        assert torch.equal(teacher(tokens), before)
        assert (teacher is model) == adapted, "an adapter needs no second copy of the weights"
    with torch.no_grad():
        assert not torch.allclose(model(tokens), before)


def test_without_self_alignment_the_data_is_the_teacher() -> None:
    """One block and no prompt: the mean over masked slots of the data's cross-entropy over the ratio."""
    model = model_of()
    options = D2FOptions(block_length=64, self_align=False)
    run = d2f(model, Once(clean_batch(start=0)), RunSettings(steps=1), mask_id=MASK, options=options)
    assert isinstance(run.objective, Distillation) and run.objective.teacher is None
    (batch,) = masked_for(run)
    with torch.no_grad():
        logs = model(batch.tokens).log_softmax(-1)
    said = -logs.gather(2, batch.targets[..., None]).squeeze(2)
    assert mean_loss(run, [batch]) == pytest.approx(float((said * batch.weights)[batch.masked].mean()), rel=1e-4)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_student_does_not_see_later_blocks(shift: int) -> None:
    """Other words in the second block change nothing that is learned about the first one, by a teacher that is data."""
    options = D2FOptions(block_length=16, self_align=False)
    model, clean = model_of(), clean_batch(length=37)
    run = d2f(model, Once(clean), RunSettings(steps=1), mask_id=MASK, shift=shift, options=options)
    (batch,) = masked_for(run)
    later = torch.arange(37) >= 21
    first = replace(batch, weights=batch.weights * ~later)
    other = replace(first, tokens=torch.where(later, 7, first.tokens))
    assert mean_loss(run, [first]) == pytest.approx(mean_loss(run, [other]), rel=1e-6)
    seen = replace(first, tokens=torch.where(torch.arange(37) == 0, 7, first.tokens))
    assert mean_loss(run, [first]) != pytest.approx(mean_loss(run, [seen]), rel=1e-6)


def test_a_trained_model_says_that_it_is_block_causal() -> None:
    model = model_of()
    run = d2f(model, copy_batches(), RunSettings(steps=1, facts={"mask_id": MASK}), mask_id=MASK)
    assert (model.config.attention, model.config.block_length) == ("block_causal", 16)
    assert run.settings.facts["mask_id"] == MASK
    assert run.settings.facts["config"]["attention"] == "block_causal"
    d2f(model, copy_batches(), RunSettings(steps=1), mask_id=MASK)  # to go on is fine
    with pytest.raises(TrainingError, match="blocks of 8"):
        d2f(model, copy_batches(), RunSettings(steps=1), mask_id=MASK, options=D2FOptions(block_length=8))


@pytest.mark.parametrize("name", ["dparallel", "wino-plus"])
def test_block_causal_models_are_refused_by_recipes_for_bidirectional_ones(name: str) -> None:
    with pytest.raises(TrainingError, match="block_causal"):
        run_of(name, model_of(attention="block_causal"))


# dParallel -----------------------------------------------------------------------------------------------------------


def test_the_authors_mask_half_of_a_block_for_llada_and_half_of_the_answer_for_dream() -> None:
    clean = clean_batch(rows=4, length=69)
    for options, inside in ((DParallelOptions(), 32), (DREAM, 64)):
        run = dparallel(model_of(), Once(clean), RunSettings(steps=1), mask_id=MASK, options=options)
        (batch,) = masked_for(run)
        one, other = batch.weights[0::2] > 0, batch.weights[1::2] > 0
        assert not (one & other).any() and (one | other).sum(1).tolist() == [inside] * 4


def test_certainty_without_weight_is_plain_cross_entropy() -> None:
    def loss_with(certainty: float) -> tuple[float, float]:
        options = DParallelOptions(certainty=certainty)
        run = dparallel(model, Once(clean_batch()), RunSettings(steps=1), mask_id=MASK, options=options)
        (batch,) = masked_for(run)
        with torch.no_grad():
            logs = model(batch.tokens).log_softmax(-1)
        said = -logs.gather(2, batch.targets[..., None]).squeeze(2)
        return mean_loss(run, [batch]), float((said * batch.weights).sum()) / (len(batch.tokens) / 2)

    model = model_of()
    got, plain = loss_with(0.0)
    assert got == pytest.approx(plain, rel=1e-4)
    assert loss_with(2.0)[0] > plain


# WINO+ ---------------------------------------------------------------------------------------------------------------


def test_a_sample_shows_what_stood_before_its_step_and_asks_for_the_step() -> None:
    run = wino_plus(model_of(), samples(10**6), RunSettings(steps=1), mask_id=MASK)
    (batch,) = masked_for(run)
    shown = (batch.tokens != MASK).sum(1)
    assert sorted(set(shown.tolist())) == [7, 9, 11, 13], "the prompt and two more a step"
    for row, known in enumerate(shown.tolist()):
        assert (batch.weights[row] > 0).nonzero()[:, 0].tolist() == [known, known + 1]


def test_a_second_stage_goes_on_with_the_same_adapter() -> None:
    model = model_of(adapted=True)
    list(train(run_of("wino-plus", model, steps=2)))
    between = copies(model.state_dict())
    list(train(run_of("wino-plus", model, steps=2, seed=1)))
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, between[key])}
    assert changed == {key for key in between if "lora" in key}


# Options -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (D2FOptions, {"block_length": 0}),
        (D2FOptions, {"lowest": 0.0}),
        (D2FOptions, {"lowest": 0.8}),
        (D2FOptions, {"highest": 1.1}),
        (D2FOptions, {"rate": 0.0}),
        (DParallelOptions, {"block_length": -1}),
        (DParallelOptions, {"certainty": -0.1}),
        (DParallelOptions, {"temperature": 0.0}),
        (DParallelOptions, {"rate": 0.0}),
        (WinoPlusOptions, {"unmask": -0.1}),
        (WinoPlusOptions, {"remask": -0.1}),
        (WinoPlusOptions, {"shy": 1.1}),
        (WinoPlusOptions, {"bold": -0.1}),
        (WinoPlusOptions, {"block_length": 0}),
        (WinoPlusOptions, {"rate": 0.0}),
    ],
)
def test_options_out_of_range_are_refused(options: Callable[..., object], changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        options(**changes)
